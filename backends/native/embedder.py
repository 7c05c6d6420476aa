"""Vectors of texts, by the decoder without its paged memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hearth.backends.contract.requests import Pooling
from hearth.backends.errors import DoesNotFit, InternalError, InvalidParameter, prompt_too_long
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import NativePlan
from hearth.backends.native.text_attention import SlicedAttention, TextsAttention, sliced_bytes
from hearth.kernels import device as devices

_TOGETHER: Final = 2048
"""Tokens of the texts that one forward pass takes, as long as there is more than one text."""


class Embedder:
    """Embeds texts with a loaded decoder.

    Args:
        own_pooling: what "model" stands for.
        use_threads: called before the decoder computes.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: NativePlan,
        own_pooling: Pooling,
        use_threads: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._plan = plan
        self._own_pooling: Pooling = "mean" if own_pooling == "model" else own_pooling
        self._use_threads = use_threads

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
        kind = self._kind(pooling)
        self._use_threads()
        vectors = [self._pooled(batch, kind) for batch in _batches(texts)]
        if not vectors:
            return np.empty((0, self._decoder.config.width), dtype=np.float32)
        return _normalized(torch.cat(vectors))

    def begin(self, text: Sequence[int], pooling: Pooling) -> NativeSlicedText:
        """`text`, to be embedded slice by slice.

        Raises:
            InvalidParameter, PromptTooLong: as `embed`.
            DoesNotFit: there is no memory for its keys and values.
        """
        self._check(text)
        plan = self._plan
        needed = sliced_bytes(self._decoder.config, len(text), plan.compute_dtype)
        free = available_bytes() if plan.device.type == "cpu" else devices.free_bytes(plan.device)
        if needed > free:
            raise DoesNotFit(
                f"Embedding a text of this length needs {needed / 1e9:.2f} GB for keys and values; "
                f"{free / 1e9:.2f} GB are available.",
                "Split the text, or close other programs.",
                needed_bytes=needed,
                available_bytes=free,
            )
        return NativeSlicedText(self._decoder, plan, text, self._kind(pooling), self._use_threads)

    def _kind(self, pooling: Pooling) -> Pooling:
        return self._own_pooling if pooling == "model" else pooling

    def _pooled(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Tensor:
        """[texts, width] float32."""
        device = self._plan.device
        lengths = [len(text) for text in texts]
        tokens = torch.tensor([token for text in texts for token in text], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        attend = TextsAttention(self._decoder.config, lengths)
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


class NativeSlicedText:
    """Implements `hearth.backends.engine.runner.SlicedText`.

    Args:
        pooling: not "model".
        use_threads: called before the decoder computes.
    """

    is_ready = True

    def __init__(
        self,
        decoder: Decoder,
        plan: NativePlan,
        text: Sequence[int],
        pooling: Pooling,
        use_threads: Callable[[], None],
    ) -> None:
        self._most = plan.max_batch_tokens
        self._decoder = decoder
        self._device = plan.device
        self._text = text
        self._pooling = pooling
        self._use_threads = use_threads
        self._attention: SlicedAttention | None = SlicedAttention(decoder.config, len(text))
        self._start = 0
        self._mean = torch.zeros(decoder.config.width, device=plan.device)

    def slice_tokens(self, tokens: int) -> int:
        """See the protocol."""
        return min(tokens, self._most, len(self._text) - self._start)

    @torch.inference_mode()
    def compute(self, tokens: int) -> NDArray[np.float32] | None:
        """See the protocol."""
        if self._attention is None:
            raise InternalError("The text is closed.")
        part = self._text[self._start : self._start + tokens]
        end = self._start + len(part)
        self._attention.advance(len(part))
        ids = torch.tensor(part, device=self._device)
        positions = torch.arange(self._start, end, device=self._device)
        self._use_threads()
        hidden = self._decoder(ids, positions, self._attention).float()
        self._start = end
        is_complete = end == len(self._text)
        if self._pooling == "mean":
            self._mean = self._mean + hidden.mean(dim=0) * (len(part) / len(self._text))
            return _normalized(self._mean[None]) if is_complete else None
        if is_complete or self._pooling == "cls":
            return _normalized(_pool(hidden, self._pooling)[None])
        return None

    def close(self) -> None:
        """See the protocol."""
        self._attention = None


def _normalized(vectors: Tensor) -> NDArray[np.float32]:
    """[texts, width], each of length 1."""
    found: NDArray[np.float32] = functional.normalize(vectors, dim=-1).cpu().numpy()
    return found


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
