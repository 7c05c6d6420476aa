"""The numbers of one answer, also of one that was stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hearth.app.chats.tree import Numbers
from hearth.backends.contract import Finished, Started


@dataclass(slots=True)
class Count:
    """Counts while an answer comes; what its worker measured counts more, where it came to that."""

    model: str = ""
    quantization: str = ""
    began_s: float = 0.0
    started: Started = Started(0)
    finished: Finished | None = None
    _came: int = 0
    _first_s: float = 0.0
    _last_s: float = 0.0

    def tokens(self, count: int) -> None:
        """So many more have come."""
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        self._last_s = now_s
        self._came += count

    def numbers(self) -> Numbers:
        """What is known by now."""
        if self.finished is not None:
            usage, timings = self.finished.usage, self.finished.timings
            return Numbers(
                timings.ttft_s,
                timings.decode_tok_per_s,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                self.model,
                self.quantization,
            )
        lasted_s = self._last_s - self._first_s
        return Numbers(
            self._first_s - self.began_s if self._came else 0.0,
            (self._came - 1) / lasted_s if lasted_s > 0 else 0.0,
            self.started.prompt_tokens,
            self.started.cached_tokens,
            self._came,
            self.model,
            self.quantization,
        )
