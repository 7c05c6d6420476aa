"""Texts that become vectors, a few in each turn of the engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract import Embeddings, Failed, Finished, FinishReason, Pooling
from hearth.backends.errors import to_info

Answer = Callable[[Embeddings | Finished | Failed], None]


class Embedding:
    """One call for vectors.

    Args:
        texts: token ids of each text, none empty.
        emit: gets exactly one of `Embeddings`, `Failed` and `Finished("cancelled")`.
    """

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
        self.id = ident
        self.pooling = pooling
        self.priority = priority
        self.session = session
        self.done = False
        self._texts = texts
        self._vectors: list[tuple[float, ...]] = []
        self._emit = emit

    def next_texts(self, tokens: int) -> list[list[int]]:
        """The next texts that together have at most so many tokens; always at least one."""
        chosen: list[list[int]] = []
        room = tokens
        for text in self._texts[len(self._vectors) :]:
            room -= len(text)
            if chosen and room < 0:
                break
            chosen.append(text)
        return chosen

    def take(self, vectors: NDArray[np.float32]) -> bool:
        """Note the [n, width] vectors of the texts that came next; returns whether it is
        complete.
        """
        self._vectors += [tuple(map(float, vector)) for vector in vectors]
        if len(self._vectors) < len(self._texts):
            return False
        self._end(Embeddings(tuple(self._vectors), sum(map(len, self._texts))))
        return True

    def finish(self, reason: FinishReason) -> None:
        """End it before it is complete."""
        self._end(Finished(reason))

    def fail(self, error: Exception) -> None:
        """End it with `error`."""
        self._end(Failed(to_info(error)))

    def _end(self, answer: Embeddings | Finished | Failed) -> None:
        if not self.done:
            self.done = True
            self._emit(answer)
