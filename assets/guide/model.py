"""guide as a torch module: a Llama decoder small enough to train on two CPU cores.

RMSNorm (arXiv 1910.07467), rotary positions (arXiv 2104.09864, half-split form), grouped-query
attention (arXiv 2305.13245), SwiGLU (arXiv 2002.05202), embeddings tied to the output.
Weights keep torch's [out, in] layout; export.py turns them into GGUF's names and row order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one model. ``context`` and the window lengths are in tokens."""

    name: str
    vocab: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    context: int = 2048
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def parameters(self) -> int:
        """Number of weights, embeddings included (they are shared with the output)."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.vocab * self.hidden + self.layers * layer + self.hidden


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles: two [length, head_dim] f32, halves repeated.

    The sine carries the sign of the half-split rotation (first half negative).
    """
    half = config.head_dim // 2
    inverse = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), inverse)
    cos = torch.cat((angles.cos(), angles.cos()), dim=-1)
    sin = torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return cos.float(), sin.float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions. x: [..., T, heads, head_dim]; cos, sin: [T, 1, head_dim]."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return x * cos + swapped * sin


class Block(nn.Module):
    """One decoder layer: attention, then SwiGLU, each after an RMSNorm and added back.

    Parameters are [out, in]; q, k and v, as well as gate and up, are separate so that an
    optimiser can treat each matrix by itself.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.attn_norm = nn.Parameter(torch.ones(config.hidden))
        self.ffn_norm = nn.Parameter(torch.ones(config.hidden))
        self.wq = nn.Parameter(torch.empty(q, config.hidden))
        self.wk = nn.Parameter(torch.empty(kv, config.hidden))
        self.wv = nn.Parameter(torch.empty(kv, config.hidden))
        self.wo = nn.Parameter(torch.empty(config.hidden, q))
        self.gate = nn.Parameter(torch.empty(config.ffn, config.hidden))
        self.up = nn.Parameter(torch.empty(config.ffn, config.hidden))
        self.down = nn.Parameter(torch.empty(config.hidden, config.ffn))

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """The attention half: x [B, T, hidden] with its update added.

        cos, sin: [T, 1, head_dim]; mask: bool [B, 1, T, T], or None for plain causal.
        """
        c = self.config
        b, t, _ = x.shape
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        h = F.rms_norm(x, (c.hidden,), self.attn_norm, c.norm_eps)
        # One product instead of three: at these sizes a wide one runs nearer to peak.
        qkv = F.linear(h, torch.cat((self.wq, self.wk, self.wv)))
        q, k, v = torch.split(qkv, [q_rows, kv_rows, kv_rows], dim=-1)
        a = F.scaled_dot_product_attention(
            rotate(q.reshape(b, t, c.heads, c.head_dim), cos, sin).transpose(1, 2),
            rotate(k.reshape(b, t, c.kv_heads, c.head_dim), cos, sin).transpose(1, 2),
            v.reshape(b, t, c.kv_heads, c.head_dim).transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=c.heads != c.kv_heads,
        )
        return x + F.linear(a.transpose(1, 2).reshape(b, t, q_rows), self.wo)

    def feed(self, x: Tensor) -> Tensor:
        """The SwiGLU half for whole windows; the one that training may compile."""
        return self.feed_rows(x)

    def feed_rows(self, x: Tensor) -> Tensor:
        """The SwiGLU half: x [..., hidden] with its update added."""
        h = F.rms_norm(x, (self.config.hidden,), self.ffn_norm, self.config.norm_eps)
        gate, up = F.linear(h, torch.cat((self.gate, self.up))).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Guide(nn.Module):
    """The whole decoder; ``forward`` gives hidden states, ``logits`` turns them into scores."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab, config.hidden))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.out_norm = nn.Parameter(torch.ones(config.hidden))
        cos, sin = rope_tables(config, config.context)
        self.register_buffer("cos", cos[:, None, :], persistent=False)
        self.register_buffer("sin", sin[:, None, :], persistent=False)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draws all weights from ``generator``: normal, output projections scaled by depth."""
        depth = 1.0 / math.sqrt(2 * self.config.layers)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.ndim == 1:
                    p.fill_(1.0)
                    continue
                std = 0.02 if name == "embedding" else p.shape[1] ** -0.5
                if name.endswith(("wo", "down")):
                    std *= depth
                p.normal_(0.0, std, generator=generator)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """ids: int [B, T] -> normalised hidden states [B, T, hidden] (bf16 under autocast).

        ``mask``: bool [B, 1, T, T], true where a query may see a key; None means causal.
        ``rows``: int64 [N], positions in the flattened [B * T]; the result is then [N, hidden],
        and the last SwiGLU is left out for all other positions.
        """
        t = ids.shape[1]
        x = F.embedding(ids, self.embedding)
        cos, sin = self.get_buffer("cos")[:t], self.get_buffer("sin")[:t]
        for n, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = block.attend(x, cos, sin, mask)
            if rows is not None and n == self.config.layers - 1:
                # Another number of rows in every batch: not a shape worth compiling for.
                x = block.feed_rows(x.flatten(0, 1)[rows])
            else:
                x = block.feed(x)
        return F.rms_norm(x, (self.config.hidden,), self.out_norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., hidden] -> [..., vocab] scores through the tied embedding."""
        return F.linear(hidden, self.embedding)


class _OutputLoss(torch.autograd.Function):
    """Cross-entropy through the tied output layer without ever holding all logits.

    Works through the rows in chunks that stay in cache and takes the gradient on the way
    (the idea of Liger-Kernel's fused linear cross-entropy, arXiv 2410.10989).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk: int,
        teacher: tuple[Tensor, Tensor, float] | None,
    ) -> Tensor:
        """See ``output_loss``."""
        w = weight.to(hidden.dtype)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight)
        total = torch.zeros((), device=hidden.device)
        for at in range(0, hidden.shape[0], chunk):
            rows = slice(at, at + chunk)
            h, label = hidden[rows], labels[rows, None]
            logits = (h @ w.t()).float()
            scale = logits.logsumexp(dim=-1, keepdim=True)
            total += (scale - logits.gather(1, label)).sum()
            gradient = logits.sub_(scale).exp_()
            if teacher is None:
                gradient.scatter_add_(1, label, torch.full_like(scale, -1.0))
            else:
                teacher_hidden, teacher_weight, share = teacher
                wanted = (teacher_hidden[rows] @ teacher_weight.t()).float().softmax(dim=-1)
                gradient.sub_(wanted, alpha=share)
                gradient.scatter_add_(1, label, torch.full_like(scale, share - 1.0))
            g = gradient.to(hidden.dtype)
            torch.mm(g, w, out=d_hidden[rows])
            d_weight += g.t() @ h
        ctx.save_for_backward(d_hidden, d_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Scales the gradients that ``forward`` took."""
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grads[0].to(d_hidden.dtype), d_weight * grads[0], None, None, None


def output_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    chunk: int = 512,
    teacher: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Summed cross-entropy in nats of ``labels`` under ``hidden @ weight.T``.

    hidden: [N, hidden]; weight: [vocab, hidden] f32; labels: int64 [N]. ``teacher`` is
    (hidden [N, its hidden], weight [vocab, its hidden], share): the gradient then pulls towards
    ``share`` of the teacher's distribution, while the number returned stays that of the labels.
    """
    loss: Tensor = _OutputLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, labels, chunk, teacher
    )
    return loss
