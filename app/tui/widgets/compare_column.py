"""One side of a comparison: a model, and its own chat as far as it went."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Select, Static

from hearth.app.chats.tree import ChatMessage, EndState, Thread
from hearth.app.terminal import safe_text
from hearth.app.tui.count import Count
from hearth.app.tui.request import build
from hearth.app.tui.services import Services
from hearth.app.tui.shown import line_of, shown
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.contract import (
    Event,
    Failed,
    Finished,
    Progress,
    Started,
    Token,
    ToolCall,
    ToolCallPart,
)
from hearth.backends.errors import HearthError, from_info

_LOOK_EVERY_S: Final = 0.25


@dataclass(slots=True)
class _Coming:
    """An answer as far as it came."""

    id: str
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, ToolCall] = field(default_factory=dict)
    count: Count = field(default_factory=Count)
    finish_reason: str = ""

    def message(self, state: EndState, error: str = "") -> ChatMessage:
        """What it has become."""
        return ChatMessage(
            self.id,
            None,
            "assistant",
            "".join(self.content),
            "".join(self.reasoning),
            tuple(self.calls.values()),
            state=state,
            finish_reason=self.finish_reason,
            error=error,
            numbers=self.count.numbers(),
        )


class CompareColumn(Vertical):
    """A model and its answers. Later questions follow those before, as in a chat.

    Args:
        names: models to choose from.
        model: the one to begin with, one of `names`.
    """

    DEFAULT_CSS = """
    CompareColumn { width: 1fr; height: 1fr; }
    CompareColumn > Select { height: 1; margin: 0 1; }
    CompareColumn > .numbers { height: 1; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, services: Services, names: Sequence[str], model: str, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._services = services
        self._names = names
        self._first = model
        self._coming: _Coming | None = None
        self._asked = 0
        self.messages: list[ChatMessage] = []
        """What was said so far, without what failed."""

    def compose(self) -> ComposeResult:
        options = [(Content(safe_text(name)), name) for name in self._names]
        yield Select(options, value=self._first, allow_blank=False, compact=True)
        yield Transcript(has_keys=False)
        yield Static("", classes="numbers", markup=False)

    def on_mount(self) -> None:
        """Keep the numbers up to date."""
        self.set_interval(_LOOK_EVERY_S, self._show_numbers)

    @property
    def model(self) -> str:
        """The name or path of the model that answers next."""
        return str(self.query_one(Select).value)

    async def ask(self, text: str) -> None:
        """Stream the answer to `text`. What goes wrong is said in its place; a cancelled one keeps
        what came.
        """
        transcript = self.query_one(Transcript)
        self._asked += 1
        question = ChatMessage(f"question-{self._asked}", None, "user", text)
        coming = self._coming = _Coming(f"answer-{self._asked}")
        coming.count.model = self.model
        await transcript.append(shown(question))
        began = ChatMessage(coming.id, None, "assistant", "", state="streaming")
        await transcript.append(shown(began))
        answer = coming.message("stopped")
        try:
            await self._stream([*self.messages, question], coming)
            answer = coming.message("complete")
        except HearthError as error:
            answer = coming.message("failed", f"{error.message} {error.hint}".strip())
        except asyncio.CancelledError:
            answer = coming.message("stopped")
            raise
        finally:
            self._coming = None
            if answer.state != "failed" or answer.content:
                self.messages += [question, answer]
            if self.is_running and transcript.is_attached:  # The app may be leaving.
                self.query_one(".numbers", Static).update("")
                await transcript.replace(shown(answer))

    async def _stream(self, messages: list[ChatMessage], coming: _Coming) -> None:
        view = self.query_one(Transcript).answer(coming.id)
        view.status("loading the model")
        chosen = await self._services.choose(self.model, {})
        backend = await self._services.host.backend(chosen.spec)
        info = await backend.info()
        coming.count.model, coming.count.quantization = info.name, info.quantization
        request = build(self._thread(), messages, chosen.use, info)
        coming.count.began_s = time.monotonic()
        generated = cast("AsyncGenerator[Event, None]", backend.generate(request))
        async with contextlib.aclosing(generated) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise from_info(event.error)
                if isinstance(event, Finished):
                    coming.count.finished, coming.finish_reason = event, event.reason
                elif isinstance(event, Started):
                    coming.count.started = event
                    view.status("reading the prompt")
                elif isinstance(event, Progress):
                    view.status(f"reading the prompt {event.done:,}/{event.total:,}")
                elif isinstance(event, Token):
                    coming.count.tokens(len(event.ids))
                    is_thought = event.channel == "reasoning"
                    (coming.reasoning if is_thought else coming.content).append(event.text)
                    view.feed(event.text, event.channel)
                elif isinstance(event, ToolCallPart):
                    coming.count.tokens(len(event.ids))
                    _put_call(coming.calls, event)

    def _thread(self) -> Thread:
        """What a request is built for: a chat that is kept nowhere."""
        return Thread(
            id=f"compare-{self.id}",
            title="",
            created_at=0.0,
            changed_at=0.0,
            pinned=False,
            archived=False,
            model=self.model,
            system="",
            settings={},
            leaf=None,
            messages=len(self.messages),
        )

    def _show_numbers(self) -> None:
        """Those of the answer under way; a finished one has its own below it."""
        if self._coming is not None:
            line = line_of(self._coming.count.numbers())
            self.query_one(".numbers", Static).update(safe_text(line))


def _put_call(calls: dict[int, ToolCall], part: ToolCallPart) -> None:
    """Add a piece of a tool call to what came of it."""
    before = calls.get(part.index, ToolCall("", "", ""))
    calls[part.index] = ToolCall(
        part.id or before.id, part.name or before.name, before.arguments + part.arguments
    )
