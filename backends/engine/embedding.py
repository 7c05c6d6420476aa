"""Texts that become vectors, or are ranked: a few in each turn of the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import Embeddings, Failed, Finished, FinishReason, Ranks
from hearth.backends.contract.loaded import RequestState, RequestStats
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Runner
from hearth.backends.errors import to_info

Answer = Callable[[Embeddings | Finished | Failed], None]
RankAnswer = Callable[[Ranks | Finished | Failed], None]


class TextJob(ABC):
    """Texts that are computed beside the sequences, without a place in their memory.

    Args:
        texts: token ids of each text, none empty.
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
        self._emit = emit

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

    def compute(self, runner: Runner, texts: list[list[int]]) -> bool:
        """Let `runner` compute `texts`, which come next; returns whether all are done, and then it
        is answered.
        """
        self._take(runner, texts)
        self._computed_tokens += sum(map(len, texts))
        if self._computed() < len(self._texts):
            return False
        self._end(self._answer(self._tokens))
        return True

    def stats(self) -> RequestStats:
        """How far it is."""
        state: RequestState = "prefill" if self._computed_tokens else "queued"
        return RequestStats(self.id, self.session, state, self._tokens, self._computed_tokens)

    def finish(self, reason: FinishReason) -> None:
        """End it before it is complete."""
        self._end(Finished(reason))

    def fail(self, error: Exception) -> None:
        """End it with `error`."""
        self._end(Failed(to_info(error)))

    @abstractmethod
    def _computed(self) -> int:
        """How many texts are done."""

    @abstractmethod
    def _take(self, runner: Runner, texts: list[list[int]]) -> None:
        """Compute `texts` and note what comes of them."""

    @abstractmethod
    def _answer(self, prompt_tokens: int) -> Embeddings | Ranks:
        """What all of them came to."""

    def _end(self, answer: Embeddings | Ranks | Finished | Failed) -> None:
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

    def _take(self, runner: Runner, texts: list[list[int]]) -> None:
        vectors: NDArray[np.float32] = runner.embed(texts, self.pooling)
        self._vectors += [tuple(map(float, vector)) for vector in vectors]

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

    def _take(self, runner: Runner, texts: list[list[int]]) -> None:
        self._scores += map(float, runner.rank(texts))

    def _answer(self, prompt_tokens: int) -> Ranks:
        return Ranks(tuple(self._scores), prompt_tokens)
