"""Medusa heads (arXiv 2401.10774).

Heads are small networks over the last hidden state of a model, each of which predicts one token
further ahead. The file is the state dict of the reference implementation (FasterDecoding/Medusa),
in safetensors. With width W and vocabulary size V, for head i and its block j:

    {i}.{j}.linear.weight [W, W] and {i}.{j}.linear.bias [W]: x + silu(W·x + b)
    {i}.{blocks}.weight [V, W]: its output matrix; if there are none, heads use the model's

Hearth's own files may add `vocabulary` [S], the ids of the only tokens that are predicted, so that
only these S rows of the model's output matrix are multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from hearth.backends.engine.medusa import Guesses
from hearth.backends.errors import CorruptFile, InvalidParameter, UnsupportedModel
from hearth.backends.native.models.decoder import Decoder
from hearth.kernels import device as devices
from hearth.quant.safetensors import SafetensorsFile

VOCABULARY: Final = "vocabulary"
_WEIGHT: Final = re.compile(
    r"(?:medusa_head\.)?(\d{1,9})\.(\d{1,9})\.(linear\.weight|linear\.bias|weight)"
)


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The weights of K heads of L blocks each."""

    blocks: Tensor
    """[L, K, W, W]"""
    biases: Tensor
    """[L, K, W]"""
    outputs: Tensor | None = None
    """[K, V, W]; None if the heads use the output matrix of the model."""
    vocabulary: Tensor | None = None
    """[S] int64, ascending; None for all tokens."""

    @property
    def count(self) -> int:
        return self.blocks.shape[1]

    def named(self) -> dict[str, Tensor]:
        """The tensors of the file."""
        made: dict[str, Tensor] = {}
        for head in range(self.count):
            for block in range(len(self.blocks)):
                place = f"{head}.{block}.linear"
                made[f"{place}.weight"] = self.blocks[block, head].contiguous()
                made[f"{place}.bias"] = self.biases[block, head].contiguous()
            if self.outputs is not None:
                made[f"{head}.{len(self.blocks)}.weight"] = self.outputs[head].contiguous()
        if self.vocabulary is not None:
            made[VOCABULARY] = self.vocabulary.to(torch.int32)
        return made


def read_heads(path: Path, width: int, vocab_size: int) -> HeadWeights:
    """Read heads from a file, for a model of this width and vocabulary.

    Args:
        path: a safetensors file.

    Raises:
        UnsupportedModel: the file is a pickle.
        CorruptFile: the file cannot be read, or has no complete heads.
        InvalidParameter: the heads are for another model.
    """
    if path.suffix == ".pt":
        raise UnsupportedModel(
            f"{path.name} is a pickle, which can run any code when it is loaded.",
            "Take the heads as safetensors, or write them so: "
            "safetensors.torch.save_file(torch.load(FILE), 'medusa_lm_head.safetensors').",
        )
    file = SafetensorsFile(path)
    try:
        tensors = {name: file.read(name).clone() for name in file.stored}
    finally:
        file.close()
    return _weights(path, tensors, width, vocab_size)


class Heads:
    """Heads over the hidden states of a decoder, on its device.

    Blocks are float32; output matrices are bfloat16 if the device multiplies that.

    Args:
        decoder: with its weights loaded.
    """

    def __init__(self, weights: HeadWeights, decoder: Decoder) -> None:
        device = decoder.norm.weight.device
        self._blocks = weights.blocks.to(device, torch.float32).transpose(-1, -2).contiguous()
        self._biases = weights.biases.to(device, torch.float32).unsqueeze(2)
        self._decoder = decoder
        self._outputs: Tensor | None = None
        self._ids: Tensor | None = None
        half = torch.bfloat16 if devices.multiplies(device, torch.bfloat16) else torch.float32
        if weights.outputs is not None:
            self._outputs = weights.outputs.to(device, half)
        if weights.vocabulary is not None:
            self._ids = weights.vocabulary.to(device)
            if self._outputs is None:
                self._outputs = decoder.output.rows(self._ids).to(half)
        self.count = weights.count
        held = [self._blocks, self._biases, self._outputs, self._ids]
        self.nbytes = sum(one.nbytes for one in held if one is not None)

    @torch.inference_mode()
    def guesses(self, hidden: Sequence[Tensor], heads: int, choices: int) -> list[Guesses]:
        """See the protocol; `hidden` has rows [width], as returned by `Decoder.forward`."""
        logits = self.logits(torch.stack(list(hidden)), heads)
        best = logits.topk(choices, dim=-1) if choices > 1 else logits.max(dim=-1, keepdim=True)
        ids = best.indices if self._ids is None else self._ids[best.indices]
        values = best.values
        if choices > 1:
            values = values - logits.logsumexp(dim=-1, keepdim=True)
        each = zip(values.transpose(0, 1).tolist(), ids.transpose(0, 1).tolist(), strict=True)
        return [
            [list(zip(*level, strict=True)) for level in zip(*one, strict=True)] for one in each
        ]

    def warm_up(self) -> None:
        """Make the first call, which takes several times as long as later ones."""
        hidden = torch.zeros_like(self._decoder.norm.weight)
        for choices in (1, 2):
            self.guesses([hidden], self.count, choices)

    def logits(self, hidden: Tensor, heads: int) -> Tensor:
        """[heads, rows, V or S] float32: V without a vocabulary of the heads, S with one."""
        x = mixed(hidden.float(), self._blocks[:, :heads], self._biases[:, :heads])
        if self._outputs is None:
            return self._decoder.logits(x.flatten(0, 1).to(hidden.dtype)).view(*x.shape[:2], -1)
        x = x.to(self._outputs.dtype)
        if self._outputs.ndim == 3:
            return torch.bmm(x, self._outputs[:heads].transpose(1, 2)).float()
        return F.linear(x.flatten(0, 1), self._outputs).float().view(*x.shape[:2], -1)


def mixed(hidden: Tensor, blocks: Tensor, biases: Tensor) -> Tensor:
    """[heads, rows, width]: the output of each head's blocks for `hidden` [rows, width].

    Args:
        blocks: [L, heads, width, width], each transposed: x · block.
        biases: [L, heads, 1, width].
    """
    x = hidden.expand(blocks.shape[1], *hidden.shape)
    for block, bias in zip(blocks, biases, strict=True):
        x = x + F.silu(torch.baddbmm(bias, x, block))
    return x


def _weights(path: Path, tensors: Mapping[str, Tensor], width: int, vocab_size: int) -> HeadWeights:
    linear: dict[tuple[int, int], dict[str, Tensor]] = {}
    outputs: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if name == VOCABULARY:
            continue
        match = _WEIGHT.fullmatch(name)
        if match is None:
            raise CorruptFile(f"{path.name} has a tensor {name}, which is of no Medusa head.")
        head, block, kind = int(match[1]), int(match[2]), match[3]
        if kind == "weight":
            outputs[head] = tensor
        else:
            linear.setdefault((block, head), {})[kind] = tensor
    heads, depth = 1 + max((at[1] for at in linear), default=-1), 1 + max(linear, default=(-1,))[0]
    kinds = ("linear.weight", "linear.bias")
    is_whole = linear and all(set(one) == set(kinds) for one in linear.values())
    if (
        not is_whole
        or len(linear) != depth * heads
        or sorted(outputs) not in ([], list(range(heads)))
    ):
        raise CorruptFile(f"{path.name} has no complete Medusa heads.", "Copy the file again.")
    places = sorted(linear)
    vocabulary = tensors.get(VOCABULARY)
    if vocabulary is not None:
        vocabulary = vocabulary.long()
        if (
            vocabulary.ndim != 1
            or not len(vocabulary)
            or not 0 <= int(vocabulary.min()) <= int(vocabulary.max()) < vocab_size
        ):
            raise CorruptFile(f"The vocabulary in {path.name} is not one of token ids.")
    rows = vocab_size if vocabulary is None else len(vocabulary)
    shapes = {tuple(one["linear.weight"].shape) for one in linear.values()}
    biases = {tuple(one["linear.bias"].shape) for one in linear.values()}
    of_outputs = {tuple(one.shape) for one in outputs.values()}
    if shapes != {(width, width)} or biases != {(width,)} or of_outputs - {(rows, width)}:
        raise InvalidParameter(
            "draft",
            f"The heads in {path.name} are for another model: blocks of {sorted(shapes)} and "
            f"outputs of {sorted(of_outputs)}, and the model has a width of {width:,} and "
            f"{vocab_size:,} tokens.",
            "`hearth train-medusa` makes some for this model.",
        )
    blocks, bias = (
        torch.stack([linear[at][kind] for at in places]).view(
            depth, heads, *linear[places[0]][kind].shape
        )
        for kind in kinds
    )
    stacked = torch.stack([outputs[head] for head in range(heads)]) if outputs else None
    return HeadWeights(blocks, bias, stacked, vocabulary)
