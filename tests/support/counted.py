"""Feeds events to a recorder of the server's metrics, as `app.server.exchange` does."""

from __future__ import annotations

from collections.abc import Callable

from hearth.app.answer import Answer
from hearth.app.server.metrics import Recorder
from hearth.backends.contract.events import Event


def counting(recorder: Recorder) -> Callable[[Event], None]:
    """A function that adds events to one answer of up to two choices, and lets `recorder` count
    them.
    """
    answer = Answer(2, clock=recorder.clock)

    def count(event: Event) -> None:
        answer.add(event)
        recorder.event(answer, event)

    return count
