"""Embedding vectors of texts, computed by the decoder over pages of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hearth.backends.contract.requests import Pooling
from hearth.backends.errors import InternalError, InvalidParameter, prompt_too_long
from hearth.backends.native.attention import Attend
from hearth.backends.native.failures import torch_failures
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.paged_attention import PagedAttention, PagedRow
from hearth.backends.native.plan import NativePlan
from hearth.backends.native.text_pages import TextPages
from hearth.kernels import device as devices

_CHEAP_TOGETHER: Final = 64
"""Beyond this many tokens in a pass, more tokens hardly reduce the cost of each."""
_REMEMBERED: Final = 0.8
"""How much of the slowest speed of earlier parts of a pass is expected of the next one."""


class Embedder:
    """Embeds texts with a loaded decoder.

    Args:
        own_pooling: the pooling that "model" stands for.
        attend: makes the attention over a pool for the given rows.
        use_threads: called before the decoder computes.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: NativePlan,
        own_pooling: Pooling,
        attend: Callable[[KvPool, Sequence[PagedRow]], Attend],
        use_threads: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._plan = plan
        self._own_pooling: Pooling = "mean" if own_pooling == "model" else own_pooling
        self._attend = attend
        self._use_threads = use_threads
        self.most = plan.max_batch_tokens
        """Most tokens of a pass."""

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> NDArray[np.float32]:
        """One vector for each text, in their order: [len(texts), width], each of length 1.

        Args:
            texts: token ids, including the special tokens that the model expects.
            pooling: "model" is the pooling the model was trained with, or mean if unknown.

        Raises:
            InvalidParameter: a text has no tokens, or one that is not in the vocabulary.
            PromptTooLong: a text is longer than the context; nothing was computed.
            DoesNotFit: there is no memory for keys and values.
            Busy, RunnerLost, InternalError: PyTorch failed, see `torch_failures`.
        """
        for text in texts:
            self._check(text)
        with torch_failures():
            return self._vectors(texts, self._kind(pooling))

    def _vectors(self, texts: Sequence[Sequence[int]], kind: Pooling) -> NDArray[np.float32]:
        vectors = [np.empty((0, self._decoder.config.width), dtype=np.float32)]
        for batch in _batches(texts, self.most):
            if len(batch[0]) > self.most:
                sliced = NativeSlicedText(self, batch[0], kind)
                while (vector := sliced.compute(self.most)) is None:
                    pass
                vectors.append(vector)
            else:
                lengths = [len(text) for text in batch]
                hidden = self.hidden(self.pages(lengths), batch)
                each = torch.split_with_sizes(hidden, lengths)
                vectors.append(_normalized(torch.stack([_pool(one, kind) for one in each])))
        return np.concatenate(vectors)

    def begin(self, text: Sequence[int], pooling: Pooling) -> NativeSlicedText:
        """Begin to embed `text` slice by slice.

        Raises:
            InvalidParameter, PromptTooLong, DoesNotFit: as `embed`.
        """
        self._check(text)
        return NativeSlicedText(self, text, self._kind(pooling))

    def pages(self, lengths: Sequence[int]) -> TextPages:
        """Pages for texts of these lengths in tokens. Raises `DoesNotFit`."""
        plan = self._plan
        return TextPages(
            self._decoder.config,
            lengths,
            step_tokens=self.most,
            dtypes=plan.kv_dtypes,
            device=plan.device,
        )

    @property
    def layers(self) -> int:
        """Number of layers of the decoder."""
        return len(self._decoder.layers)

    def hidden(self, pages: TextPages, texts: Sequence[Sequence[int]]) -> Tensor:
        """[tokens of all texts, width] float32: hidden states."""
        *_, hidden = self.by_layer(pages, texts, 0)
        assert isinstance(hidden, Tensor)
        return hidden

    def by_layer(
        self, pages: TextPages, parts: Sequence[Sequence[int]], start: int, *, stops: bool = False
    ) -> Iterator[float | Tensor]:
        """The hidden states of the next part of each text, layer by layer, or in smaller pieces:
        yields how much it computes next, in layers, before it does, and then the hidden states
        [tokens of all parts, width] float32.

        Other forward passes may run in between.

        Args:
            pages: of the texts.
            start: tokens before the part, the same number in each text.
            stops: layers may be computed in several pieces.
        """
        device = self._plan.device
        tokens = torch.tensor([token for part in parts for token in part], device=device)
        positions = torch.cat([torch.arange(start, start + len(part)) for part in parts])
        attend = self._attend(pages.pool, pages.rows([len(part) for part in parts], start))
        if isinstance(attend, PagedAttention):
            attend.stops = stops
        self._use_threads()
        for computed in self._decoder.by_layer(tokens, positions.to(device), attend):
            yield computed.float() if isinstance(computed, Tensor) else computed
            self._use_threads()

    def wait(self) -> None:
        """Wait until the device is done, so that a slice's time is not counted in the next step."""
        devices.wait_for(self._plan.device)

    def _kind(self, pooling: Pooling) -> Pooling:
        return self._own_pooling if pooling == "model" else pooling

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
    """

    is_ready = True
    is_concurrent = False

    def __init__(self, embedder: Embedder, text: Sequence[int], pooling: Pooling) -> None:
        self._embedder = embedder
        self._text = text
        self._pooling = pooling
        self._pages: TextPages | None = embedder.pages([len(text)])
        self._start = 0
        """Tokens before the current pass, or before the next one if there is none."""
        self._pass: _Pass | None = None
        self._sum: Tensor | float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the text's keys and values."""
        return 0 if self._pages is None else self._pages.nbytes

    @property
    def computed(self) -> int:
        """Number of tokens computed so far; those of a pass count as far as it has got."""
        return self._start + (0 if self._pass is None else self._pass.computed)

    @torch.inference_mode()
    def compute(
        self, tokens: int, left_s: Callable[[], float] | None = None
    ) -> NDArray[np.float32] | None:
        """See the protocol.

        If there is time for only a few tokens, a pass takes more tokens than that and is computed a
        few layers, or parts of one, at a time, because tokens cost less in a larger pass, above all
        after many others.
        """
        if self._pages is None:
            raise InternalError("The text is closed.")
        if self._pass is None:
            part = self._text[self._start :][: self._pass_tokens(tokens)]
            by_layer = self._embedder.by_layer(
                self._pages, [part], self._start, stops=left_s is not None
            )
            self._pass = _Pass(by_layer, len(part), self._embedder.layers)
        with torch_failures():
            hidden = self._pass.compute(tokens, left_s)
            self._embedder.wait()
        if hidden is None:
            return None
        self._start += self._pass.tokens
        self._pass = None
        is_complete = self._start == len(self._text)
        if self._pooling == "mean":
            self._sum = hidden.sum(dim=0) + self._sum
            return _normalized(self._sum[None]) if is_complete else None
        if is_complete or self._pooling == "cls":
            return _normalized(_pool(hidden, self._pooling)[None])
        return None

    def close(self) -> None:
        """See the protocol."""
        self._pages = self._pass = None

    def _pass_tokens(self, tokens: int) -> int:
        """Tokens of the next pass, given time for `tokens` tokens."""
        left = min(self._embedder.most, len(self._text) - self._start)
        if tokens >= min(left, _CHEAP_TOGETHER):
            return min(tokens, left)
        return max(min(tokens * self._embedder.layers, left), 1)


class _Pass:
    """A forward pass over a part of a text.

    Args:
        by_layer: see `Embedder.by_layer`.
    """

    def __init__(self, by_layer: Iterator[float | Tensor], tokens: int, layers: int) -> None:
        self.tokens = tokens
        self._by_layer = by_layer
        self._layers = layers
        self._done = 0.0
        """Layers computed so far."""
        self._next = 0.0
        """Layers that `by_layer` computes next."""
        self._layer_s = 0.0
        """Expected seconds per layer: those of the slowest part, which counts less with time."""

    @property
    def computed(self) -> int:
        """The share of `tokens` that is computed."""
        return round(self.tokens * self._done / self._layers)

    def compute(self, tokens: int, left_s: Callable[[], float] | None) -> Tensor | None:
        """Compute what is worth `tokens` tokens, at least one part, but nothing that is expected to
        take longer than there is time left. Returns the hidden states after the last layer.

        On a card the time is not known before `Embedder.wait`, so it does not matter there.
        """
        begun = self._done
        end = begun + tokens / self.tokens * self._layers
        left = math.inf if left_s is None else left_s()
        for following in self._by_layer:
            if isinstance(following, Tensor):
                return following
            before, left = left, math.inf if left_s is None else left_s()
            if self._next and left < math.inf:
                layer_s = (before - left) / self._next
                self._layer_s = max(layer_s, _REMEMBERED * self._layer_s)
            self._done += self._next
            self._next = following
            is_too_much = self._done + following / 2 > end or left < self._layer_s * following
            if self._done > begun and is_too_much:
                return None
        raise AssertionError("the pass ended before")


def _normalized(vectors: Tensor) -> NDArray[np.float32]:
    """The vectors [texts, width] scaled to length 1."""
    unit_vectors: NDArray[np.float32] = functional.normalize(vectors, dim=-1).cpu().numpy()
    return unit_vectors


def _pool(hidden: Tensor, pooling: Pooling) -> Tensor:
    """[tokens, width] -> [width]."""
    if pooling == "last":
        return hidden[-1]
    if pooling == "cls":
        return hidden[0]
    return hidden.mean(dim=0)


def _batches(texts: Sequence[Sequence[int]], most: int) -> Iterator[list[Sequence[int]]]:
    """Batches of texts of at most `most` tokens together, or of one longer text."""
    batch: list[Sequence[int]] = []
    tokens = 0
    for text in texts:
        if batch and tokens + len(text) > most:
            yield batch
            batch, tokens = [], 0
        batch.append(text)
        tokens += len(text)
    if batch:
        yield batch
