"""One request from a command: its text is streamed, and Ctrl+C stops it and keeps the text."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hearth.app.answer import Answer
from hearth.app.cli.state import State
from hearth.app.cli.words import headline
from hearth.app.host_link import HostLink
from hearth.app.shell import argument
from hearth.backends.contract import ModelInfo, ModelSpec, Request, Token
from hearth.backends.errors import NoChatTemplate


def ask(
    link: HostLink,
    spec: ModelSpec,
    request: Request,
    show: Callable[[str], None],
    think: Callable[[str], None],
) -> Answer:
    """The answer to `request`, also where it fails or Ctrl+C stops it (`reason` "cancelled").

    Args:
        show: gets each piece of text.
        think: gets each piece of the reasoning.
    """
    answer = Answer(request.n)
    with link.stream(spec, request) as events, on_interrupt(events.interrupt):
        for event in events:
            answer.add(event)
            if isinstance(event, Token):
                (think if event.channel == "reasoning" else show)(event.text)
    answer.reason = answer.reason or "cancelled"
    return answer


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
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


def require_template(info: ModelInfo) -> None:
    """Raise `NoChatTemplate` unless the model can chat."""
    from hearth.quant.gguf.file import ENCODERS

    if info.architecture in ENCODERS:
        raise NoChatTemplate(
            f"{info.name} is an encoder, which cannot generate text.",
            "It embeds or ranks texts: use the endpoint of hearth serve.",
        )
    if not info.has_chat_template:
        raise NoChatTemplate(
            f"{info.name} has no chat template, so it cannot chat.",
            f"It can complete text: hearth run --raw {argument(info.name)} TEXT.",
        )


def announce(state: State, info: ModelInfo, *, stats: bool) -> None:
    """Print on stderr which model answers, and what the user should know about it."""
    if stats or state.output.narrates_to_terminal:
        state.output.note(headline(info))
    for notice in info.notices:
        state.output.note(notice)
