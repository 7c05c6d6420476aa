"""Texts that become vectors, or are ranked: a few in each turn of the engine, or a slice of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import Embeddings, Failed, Finished, FinishReason, Ranks
from hearth.backends.contract.loaded import RequestState, RequestStats
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Runner, SlicedText
from hearth.backends.errors import to_info

Answer = Callable[[Embeddings | Finished | Failed], None]
RankAnswer = Callable[[Ranks | Finished | Failed], None]


class TextJob(ABC):
    """Texts that are computed beside the sequences, without a place in their memory.

    Args:
        texts: token ids of each text; at least one text, and none empty.
        emit: gets exactly one of the answer, `Failed` and `Finished("cancelled")`.
    """

    def __init__(
        self,
        ident: int,
        texts: list[list[int]],
        emit: Callable[[Any], None],
        *,
        priority: int = 0,
        session: str = "",
    ) -> None:
        self.id = ident
        self.priority = priority
        self.session = session
        self.done = False
        self._texts = texts
        self._tokens = sum(map(len, texts))
        self._computed_tokens = 0
        self._sliced: SlicedText | None = None
        """The next text, where a part of it is computed."""
        self._sliced_tokens = 0
        self._emit = emit

    @property
    def is_within_text(self) -> bool:
        """Whether the next text is computed in slices, so that the runner holds memory for it."""
        return self._sliced is not None

    @property
    def start(self) -> int:
        """Tokens of the next text that are computed."""
        return 0 if self._sliced is None else self._sliced_tokens

    @property
    def is_ready(self) -> bool:
        """Whether `compute` may be called: the memory for the slices of its next text is there."""
        return self._sliced is None or self._sliced.is_ready

    def exceeds(self, tokens: int) -> bool:
        """Whether the next text has more than `tokens` tokens."""
        return len(self._texts[self._computed()]) > tokens

    def next_texts(self, tokens: int) -> list[list[int]]:
        """The next texts that together have at most so many tokens; always at least one."""
        chosen: list[list[int]] = []
        room = tokens
        for text in self._texts[self._computed() :]:
            room -= len(text)
            if chosen and room < 0:
                break
            chosen.append(text)
        return chosen

    def compute(self, runner: Runner, tokens: int, ready: Callable[[], None]) -> int:
        """Let `runner` compute the next texts that together have at most `tokens` tokens, or a
        slice of so many of a longer one; a longer one that the runner cannot slice is computed
        whole. After the last text the job is answered.

        Args:
            ready: called from any thread when it `is_ready` again, if it is not after this.

        Returns:
            Tokens that were computed.
        """
        if self._sliced is None and runner.info.slices_texts and self.exceeds(tokens):
            self._sliced_tokens = 0
            self._sliced = self._begin(runner, self._texts[self._computed()], ready)
            if not self._sliced.is_ready:
                return 0
        if self._sliced is not None:
            computed = self._compute_slice(self._sliced, tokens)
        else:
            texts = self.next_texts(tokens)
            self._take(self._whole(runner, texts))
            computed = sum(map(len, texts))
            self._computed_tokens += computed
        if self._computed() == len(self._texts):
            self._end(self._answer(self._tokens))
        return computed

    def stats(self) -> RequestStats:
        """How far it is."""
        computed = self._computed_tokens
        if self._sliced is not None:
            computed += self._sliced_tokens
        state: RequestState = "prefill" if computed else "queued"
        return RequestStats(self.id, self.session, state, self._tokens, computed)

    def finish(self, reason: FinishReason) -> None:
        """End it before it is complete."""
        self._end(Finished(reason))

    def fail(self, error: Exception) -> None:
        """End it with `error`."""
        self._end(Failed(to_info(error)))

    def _compute_slice(self, sliced: SlicedText, tokens: int) -> int:
        text = self._texts[self._computed()]
        count = sliced.slice_tokens(tokens)
        found = sliced.compute(count)
        self._sliced_tokens += count
        if found is not None:
            self._close_text()
            self._take(found)
            self._computed_tokens += len(text)
        return count

    def _close_text(self) -> None:
        sliced, self._sliced = self._sliced, None
        if sliced is not None:
            sliced.close()

    @abstractmethod
    def _computed(self) -> int:
        """How many texts are done."""

    @abstractmethod
    def _whole(self, runner: Runner, texts: list[list[int]]) -> NDArray[np.float32]:
        """What comes of each of `texts`, computed in one call."""

    @abstractmethod
    def _begin(self, runner: Runner, text: list[int], ready: Callable[[], None]) -> SlicedText:
        """The same for one text, computed slice by slice."""

    @abstractmethod
    def _take(self, found: NDArray[np.float32]) -> None:
        """Note what came of the next texts."""

    @abstractmethod
    def _answer(self, prompt_tokens: int) -> Embeddings | Ranks:
        """What all of them came to."""

    def _end(self, answer: Embeddings | Ranks | Finished | Failed) -> None:
        self._close_text()
        if not self.done:
            self.done = True
            self._emit(answer)


class Embedding(TextJob):
    """One call for vectors, answered by `Embeddings`."""

    def __init__(
        self,
        ident: int,
        texts: list[list[int]],
        pooling: Pooling,
        emit: Answer,
        *,
        priority: int = 0,
        session: str = "",
    ) -> None:
        super().__init__(ident, texts, emit, priority=priority, session=session)
        self.pooling = pooling
        self._vectors: list[tuple[float, ...]] = []

    def _computed(self) -> int:
        return len(self._vectors)

    def _whole(self, runner: Runner, texts: list[list[int]]) -> NDArray[np.float32]:
        return runner.embed(texts, self.pooling)

    def _begin(self, runner: Runner, text: list[int], ready: Callable[[], None]) -> SlicedText:
        return runner.begin_text(text, self.pooling, ready)

    def _take(self, found: NDArray[np.float32]) -> None:
        self._vectors += [tuple(map(float, vector)) for vector in found]

    def _answer(self, prompt_tokens: int) -> Embeddings:
        return Embeddings(tuple(self._vectors), prompt_tokens)


class Ranking(TextJob):
    """One call for how well texts answer a query, answered by `Ranks`.

    Args:
        pairs: token ids of the query and a text, together as the model wants them.
        emit: gets exactly one of `Ranks`, `Failed` and `Finished("cancelled")`.
    """

    def __init__(
        self,
        ident: int,
        pairs: list[list[int]],
        emit: RankAnswer,
        *,
        priority: int = 0,
        session: str = "",
    ) -> None:
        super().__init__(ident, pairs, emit, priority=priority, session=session)
        self._scores: list[float] = []

    def _computed(self) -> int:
        return len(self._scores)

    def _whole(self, runner: Runner, texts: list[list[int]]) -> NDArray[np.float32]:
        return runner.rank(texts)

    def _begin(self, runner: Runner, text: list[int], ready: Callable[[], None]) -> SlicedText:
        return runner.begin_text(text, None, ready)

    def _take(self, found: NDArray[np.float32]) -> None:
        self._scores += map(float, found)

    def _answer(self, prompt_tokens: int) -> Ranks:
        return Ranks(tuple(self._scores), prompt_tokens)
