"""Vectors of texts, by the decoder without its paged memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hearth.backends.contract.requests import Pooling
from hearth.backends.errors import InvalidParameter, prompt_too_long
from hearth.backends.native.dense_attention import DenseAttention
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import NativePlan

_TOGETHER: Final = 2048
"""Tokens of the texts that one forward pass takes, as long as there is more than one text."""


class Embedder:
    """Embeds texts with a loaded decoder.

    Args:
        own_pooling: what "model" stands for.
    """

    def __init__(self, decoder: Decoder, plan: NativePlan, own_pooling: Pooling) -> None:
        self._decoder = decoder
        self._plan = plan
        self._own_pooling: Pooling = "mean" if own_pooling == "model" else own_pooling

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> NDArray[np.float32]:
        """One vector for each text, in their order: [len(texts), width], each of length 1.

        Args:
            texts: token ids, with the special tokens that the model wants.
            pooling: "model" is what the model was trained with, or mean where that is not known.

        Raises:
            InvalidParameter: a text has no tokens, or one that is not in the vocabulary.
            PromptTooLong: with both numbers; nothing was computed.
        """
        for text in texts:
            self._check(text)
        kind = self._own_pooling if pooling == "model" else pooling
        vectors = [self._pooled(batch, kind) for batch in _batches(texts)]
        if not vectors:
            return np.empty((0, self._decoder.config.width), dtype=np.float32)
        found: NDArray[np.float32] = functional.normalize(torch.cat(vectors), dim=-1).cpu().numpy()
        return found

    def _pooled(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Tensor:
        """[texts, width] float32."""
        device = self._plan.device
        lengths = [len(text) for text in texts]
        tokens = torch.tensor([token for text in texts for token in text], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        attend = DenseAttention(self._decoder.config, lengths)
        hidden = self._decoder(tokens, positions, attend).float()
        return torch.stack([_pool(text, pooling) for text in hidden.split(lengths)])

    def _check(self, text: Sequence[int]) -> None:
        vocabulary = self._decoder.config.vocab_size
        if not text:
            raise InvalidParameter("input", "A text without tokens has no vector.")
        if not 0 <= min(text) <= max(text) < vocabulary:
            raise InvalidParameter("input", f"A token is not in the vocabulary of {vocabulary:,}.")
        if len(text) > self._plan.context:
            raise prompt_too_long(
                "texts", len(text), self._plan.context, hint="Cut it into pieces."
            )


def _pool(hidden: Tensor, pooling: Pooling) -> Tensor:
    """[tokens, width] -> [width]."""
    if pooling == "last":
        return hidden[-1]
    if pooling == "cls":
        return hidden[0]
    return hidden.mean(dim=0)


def _batches(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    tokens = 0
    for text in texts:
        if batch and tokens + len(text) > _TOGETHER:
            yield batch
            batch, tokens = [], 0
        batch.append(text)
        tokens += len(text)
    if batch:
        yield batch
