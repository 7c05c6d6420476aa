"""One request from a command: stream its text, let Ctrl+C stop it, and keep what came."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from hearth.app.host_link import LinkedModel
from hearth.backends.contract import (
    ChoiceFinished,
    ErrorInfo,
    Failed,
    Finished,
    Progress,
    Request,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)


@dataclass(slots=True)
class Answer:
    """What came back for one request, also when it failed or was stopped."""

    text: str = ""
    reasoning: str = ""
    """What the model thought before it."""
    reason: str = ""
    """Why it ended: "stop", "length", "cancelled" (Ctrl+C) or "error"."""
    stop: str | None = None
    error: ErrorInfo | None = None
    notices: tuple[str, ...] = ()
    usage: Usage = Usage()
    timings: Timings = Timings()
    logprobs: list[TokenLogprob] = field(default_factory=list)


def ask(
    model: LinkedModel,
    request: Request,
    show: Callable[[str], None],
    think: Callable[[str], None],
) -> Answer:
    """Run `request` and hand its text to `show`, and what is thought before it to `think`, as it
    comes.

    Ctrl+C cancels the request and keeps the text; it raises nothing.

    Args:
        model: who answers.
        request: what is asked.
        show: gets each piece of text.
        think: gets each piece of the reasoning.
    """
    answer = Answer()
    pieces: list[str] = []
    thoughts: list[str] = []
    completed = 0
    with model.stream(request) as events, _on_interrupt(events.interrupt):
        for event in events:
            match event:
                case Started():
                    answer.notices = event.notices
                    answer.usage = Usage(event.prompt_tokens, event.cached_tokens)
                case Token():
                    completed += len(event.ids)
                    answer.logprobs += event.logprobs or ()
                    if event.channel == "reasoning":
                        thoughts.append(event.text)
                        think(event.text)
                    else:
                        pieces.append(event.text)
                        show(event.text)
                case Finished():
                    answer.reason, answer.stop = event.reason, event.stop
                    answer.usage, answer.timings = event.usage, event.timings
                    answer.notices += event.notices
                case Failed():
                    answer.reason, answer.error = "error", event.error
                case Progress() | ChoiceFinished() | ToolCallPart():
                    continue
    answer.text, answer.reasoning = "".join(pieces), "".join(thoughts)
    if answer.reason in ("", "error"):
        answer.usage = Usage(answer.usage.prompt_tokens, answer.usage.cached_tokens, completed)
    answer.reason = answer.reason or "cancelled"
    return answer


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl+C calls `stop` in place of raising KeyboardInterrupt; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
