"""Stops restarting a worker that dies again and again."""

from __future__ import annotations

import math
import time

from hearth.backends.errors import WorkerDied

MAX_DEATHS = 3
COOL_DOWN_S = 60.0


class Breaker:
    """Opens after `MAX_DEATHS` deaths in a row without a finished step between them; then one
    start per `COOL_DOWN_S` is allowed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._in_row = 0
        self._died_at = -math.inf
        self.deaths = 0

    def step(self) -> None:
        """The worker finished a step, so it works."""
        self._in_row = 0

    def death(self) -> None:
        """The worker died without being stopped."""
        self.deaths += 1
        self._in_row += 1
        self._died_at = time.monotonic()

    @property
    def remembers(self) -> bool:
        """Whether the deaths still matter: the last one was within `COOL_DOWN_S`."""
        return time.monotonic() - self._died_at < COOL_DOWN_S

    def check(self) -> None:
        """Raises `WorkerDied` while the breaker is open."""
        if self._in_row < MAX_DEATHS:
            return
        left = self._died_at + COOL_DOWN_S - time.monotonic()
        if left > 0:
            raise WorkerDied(
                f"{self._name} died {self._in_row} times in a row before it finished one step.",
                f"Run `hearth doctor` for the cause; Hearth tries again in {left:.0f} s.",
                retry_after_s=round(left, 1),
            )
