"""Greedy answers straight from a GGUF file, in torch f32: the reference that engines are held to.

``python -m hearth.assets.guide.sample MODEL "What is Hearth?"`` prints one answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hearth.assets.guide.export import load_weights, read_gguf
from hearth.assets.guide.model import Block, Guide, rotate
from hearth.assets.guide.tokenizer import END, from_vocabulary, render_ids

Cache = list[tuple[Tensor, Tensor]]


class Sampler:
    """A guide checkpoint that answers conversations greedily, one at a time."""

    def __init__(self, path: Path) -> None:
        weights, vocab, config = read_gguf(path)
        self.tokenizer = from_vocabulary(vocab)
        self.model = Guide(config)
        load_weights(self.model, weights)
        self.model.eval()

    @torch.inference_mode()
    def answer(self, messages: Sequence[tuple[str, str]], max_tokens: int = 160) -> str:
        """The assistant's next turn, up to ``max_tokens`` tokens.

        Where conversation and answer would pass the context, the oldest exchanges are left out.
        """
        room = self.model.config.context - max_tokens
        kept = list(messages)
        ids = render_ids(self.tokenizer, kept, add_generation_prompt=True)
        while len(ids) > room and len(kept) > 1:
            kept = kept[2:]
            ids = render_ids(self.tokenizer, kept, add_generation_prompt=True)
        return self.tokenizer.decode(self.continue_ids(ids[-room:], max_tokens))

    @torch.inference_mode()
    def continue_ids(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        """The most likely continuation of ``ids``, without the ending <|end|>."""
        cache: Cache = []
        out: list[int] = []
        logits = self._step(list(ids), cache)
        while len(out) < max_tokens:
            best = int(logits.argmax())
            if best == END:
                break
            out.append(best)
            logits = self._step([best], cache)
        return out

    def _step(self, ids: list[int], cache: Cache) -> Tensor:
        """Logits [vocab] after ``ids``, which follow what ``cache`` holds; extends ``cache``."""
        model = self.model
        start = cache[0][0].shape[2] if cache else 0
        x = F.embedding(torch.tensor([ids]), model.embedding)
        cos = model.get_buffer("cos")[start : start + len(ids)]
        sin = model.get_buffer("sin")[start : start + len(ids)]
        for n, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            if len(cache) <= n:
                cache.append((torch.empty(0), torch.empty(0)))
            x = self._layer(block, x, cos, sin, cache, n, start)
        c = model.config
        return model.logits(F.rms_norm(x[0, -1], (c.hidden,), model.out_norm, c.norm_eps))

    @staticmethod
    def _layer(
        block: Block, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache, n: int, start: int
    ) -> Tensor:
        c = block.config
        t = x.shape[1]
        h = F.rms_norm(x, (c.hidden,), block.attn_norm, c.norm_eps)
        q = rotate(F.linear(h, block.wq).view(1, t, c.heads, c.head_dim), cos, sin)
        k = rotate(F.linear(h, block.wk).view(1, t, c.kv_heads, c.head_dim), cos, sin)
        v = F.linear(h, block.wv).view(1, t, c.kv_heads, c.head_dim)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        if start:
            keys = torch.cat((cache[n][0], keys), dim=2)
            values = torch.cat((cache[n][1], values), dim=2)
        cache[n] = (keys, values)
        a = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, is_causal=start == 0, enable_gqa=True
        )
        x = x + F.linear(a.transpose(1, 2).reshape(1, t, -1), block.wo)
        return block.feed(x)


def main() -> None:
    """Prints the answer to one question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("question")
    parser.add_argument("--system", default="")
    parser.add_argument("--max-tokens", type=int, default=160)
    args = parser.parse_args()
    messages = [("system", args.system)] if args.system else []
    messages.append(("user", args.question))
    print(Sampler(args.model).answer(messages, args.max_tokens))


if __name__ == "__main__":
    main()
