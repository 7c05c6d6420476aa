"""Jobs that embed or rank texts: per iteration of the engine, a few texts or a slice of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import Embeddings, Failed, Finished, FinishReason, Ranks
from hearth.backends.contract.loaded import RequestState, RequestStats
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Runner, SlicedText
from hearth.backends.errors import to_info

Emit = Callable[[Embeddings | Ranks | Finished | Failed], None]


class TextJob:
    """Texts that are computed alongside the sequences, without using their slots.

    Args:
        texts: token ids of each text; at least one text, and none empty. For ranking, each has the
            query and a text in the format of the model.
        pooling: for embeddings; None: the texts are ranked.
        emit: gets exactly one of the answer (`Embeddings`, or `Ranks`), `Failed` and
            `Finished("cancelled")`.
    """

    def __init__(
        self,
        ident: int,
        texts: list[list[int]],
        pooling: Pooling | None,
        emit: Emit,
        *,
        session: str = "",
    ) -> None:
        self.id = ident
        self.session = session
        self.done = False
        self._texts = texts
        self.pooling = pooling
        self._computed: list[NDArray[np.float32]] = []
        """Results of the first texts: a vector or a rank each."""
        self._tokens = sum(map(len, texts))
        self._computed_tokens = 0
        self._sliced: SlicedText | None = None
        """The next text, if it is being computed in slices."""
        self._counted = 0
        """Number of tokens of that text which `compute` has returned."""
        self._emit = emit

    @property
    def is_within_text(self) -> bool:
        """Whether the next text is computed in slices; the runner then holds memory for it."""
        return self._sliced is not None

    @property
    def start(self) -> int:
        """Number of tokens of the next text that are already computed."""
        return 0 if self._sliced is None else self._sliced.computed

    @property
    def is_ready(self) -> bool:
        """Whether `compute` may be called: memory for slices of the next text is allocated, and
        none of them is being computed.
        """
        return self._sliced is None or self._sliced.is_ready

    @property
    def is_concurrent(self) -> bool:
        """Whether slices of the next text are computed while steps go on."""
        return self._sliced is not None and self._sliced.is_concurrent

    def exceeds(self, tokens: int) -> bool:
        """Whether the next text has more than `tokens` tokens."""
        return len(self._texts[len(self._computed)]) > tokens

    def next_texts(self, tokens: int) -> list[list[int]]:
        """The next texts that together have at most `tokens` tokens; always at least one."""
        chosen: list[list[int]] = []
        room = tokens
        for text in self._texts[len(self._computed) :]:
            room -= len(text)
            if chosen and room < 0:
                break
            chosen.append(text)
        return chosen

    def compute(
        self,
        runner: Runner,
        tokens: int,
        ready: Callable[[], None],
        left_s: Callable[[], float] | None = None,
    ) -> int:
        """Let `runner` compute the next texts that together have at most `tokens` tokens, or a
        slice of about that size of a longer text; a longer text that the runner cannot slice is
        computed whole. After the last text the answer is emitted.

        Args:
            ready: called from any thread when the job `is_ready` again, if it is not after this.
            left_s: see `SlicedText.compute`.

        Returns:
            The number of tokens computed since the last call.
        """
        if self._sliced is None and runner.info.slices_texts and self.exceeds(tokens):
            text = self._texts[len(self._computed)]
            self._sliced = runner.begin_text(text, self.pooling, ready)
            if not self._sliced.is_ready:
                return 0
        if self._sliced is not None:
            computed = self._compute_slice(self._sliced, tokens, left_s)
        else:
            texts = self.next_texts(tokens)
            if self.pooling is None:
                self._computed.extend(runner.rank(texts))
            else:
                self._computed.extend(runner.embed(texts, self.pooling))
            computed = sum(map(len, texts))
            self._computed_tokens += computed
        if len(self._computed) == len(self._texts):
            self._end(self._answer())
        return computed

    def stats(self) -> RequestStats:
        """Its progress."""
        computed = self._computed_tokens
        if self._sliced is not None:
            computed += self._sliced.computed
        state: RequestState = "prefill" if computed else "queued"
        return RequestStats(self.id, self.session, state, self._tokens, computed)

    def finish(self, reason: FinishReason) -> None:
        """End it before it is complete."""
        self._end(Finished(reason))

    def fail(self, error: Exception) -> None:
        """End it with `error`."""
        self._end(Failed(to_info(error)))

    def _compute_slice(
        self, sliced: SlicedText, tokens: int, left_s: Callable[[], float] | None
    ) -> int:
        result = sliced.compute(tokens, left_s)
        computed = sliced.computed
        count, self._counted = computed - self._counted, computed
        if result is not None:
            self._close_text()
            self._computed_tokens += len(self._texts[len(self._computed)])
            self._computed.extend(result)
            self._counted = 0
        return count

    def _close_text(self) -> None:
        sliced, self._sliced = self._sliced, None
        if sliced is not None:
            sliced.close()

    def _answer(self) -> Embeddings | Ranks:
        if self.pooling is None:
            return Ranks(tuple(map(float, self._computed)), self._tokens)
        vectors = tuple(tuple(map(float, vector)) for vector in self._computed)
        return Embeddings(vectors, self._tokens)

    def _end(self, answer: Embeddings | Ranks | Finished | Failed) -> None:
        self._close_text()
        if not self.done:
            self.done = True
            self._emit(answer)
