"""Streaming with attention sinks, computed from scratch: all tokens at once, without cached or
moved keys. Keys get their positions for each token that sees them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hearth.backends.engine.scoring import Scoring
from hearth.backends.engine.streaming import Streaming
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.rope import inverse_frequencies


class Recorded(Scoring):
    """Keeps the logits after each of its tokens."""

    def __init__(self, tokens: list[int], streaming: Streaming, emit=lambda event: None) -> None:
        super().__init__(1, [*tokens, 0], emit)
        self.streaming = streaming
        self.logits: list[Tensor] = []

    def take(self, row, result):
        if row.outputs:
            self.logits += [torch.tensor(logits) for logits in result.logits[row.slot]]
        return super().take(row, result)


def streaming_logits(decoder: Decoder, tokens: list[int], streaming: Streaming) -> Tensor:
    """[tokens, vocabulary]: the logits of `decoder` after each token, which sees the first tokens
    and the newest ones.
    """
    count = len(tokens)
    dropped = torch.tensor([streaming.dropped(at) for at in range(count)])

    def attend(layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None) -> Tensor:
        rope = decoder.config.layers[layer].rope
        assert rope is not None and sinks is None
        frequencies = inverse_frequencies(rope, decoder.config.context).double()
        shared = decoder.config.heads // decoder.config.kv_heads
        keys, values = (one.repeat_interleave(shared, 1).double() for one in key_value.unbind(1))
        out = torch.empty_like(query)
        for gone in dropped.unique().tolist():
            asking = (dropped == gone).nonzero()[:, 0]
            seen = torch.arange(int(asking[-1]) + 1)
            seen = seen[(seen < streaming.sinks) | (seen >= streaming.sinks + gone)]
            places = torch.arange(len(seen))
            rotated = _rotated(keys[seen], places.double(), frequencies)
            own = places[torch.isin(seen, asking)]
            asked = _rotated(query[asking].double(), own.double(), frequencies)
            scores = torch.einsum("qhd,khd->hqk", asked, rotated) * decoder.config.scale
            scores = scores.masked_fill(places > own[:, None], -torch.inf)
            out[asking] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values[seen]).to(out)
        return out

    with torch.no_grad():
        nowhere = torch.zeros(count, dtype=torch.long)
        return decoder.logits(decoder(torch.tensor(tokens), nowhere, attend))


def _rotated(heads: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """[tokens, heads, d] as complex numbers, multiplied by those of their positions."""
    half = len(frequencies)
    numbers = torch.complex(
        heads[..., :half].contiguous(), heads[..., half : 2 * half].contiguous()
    )
    angles = (positions[:, None] * frequencies)[:, None]
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((numbers.real, numbers.imag, heads[..., 2 * half :]), dim=-1)
