"""One prompt to two models side by side, streaming together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import ClassVar, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Select, Static

from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.terminal import safe_text
from hearth.app.tui.count import Count
from hearth.app.tui.request import build
from hearth.app.tui.services import Services
from hearth.app.tui.shown import line_of
from hearth.app.tui.widgets.message import Shown, State
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.contract import Event, Failed, Finished, Progress, Started, Token
from hearth.backends.errors import HearthError, from_info


class Column(Vertical):
    """One model's answers."""

    DEFAULT_CSS = """
    Column { width: 1fr; padding: 0 1; }
    Column .numbers { height: 1; color: $text-muted; }
    """

    def __init__(self, names: list[str], model: str, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._names = names
        self._model = model
        self._asked = 0

    def compose(self) -> ComposeResult:
        options = [(safe_text(name), name) for name in self._names]
        yield Select(options, value=self._model, allow_blank=False, compact=True)
        yield Transcript()
        yield Static("", classes="numbers", markup=False)

    @property
    def model(self) -> str:
        return str(self.query_one(Select).value)

    async def ask(self, services: Services, text: str) -> None:
        """Stream the answer of this column's model to `text`."""
        self._asked += 1
        question, answer = f"q{self._asked}", f"a{self._asked}"
        transcript = self.query_one(Transcript)
        await transcript.append(Shown(question, "user", text))
        await transcript.append(Shown(answer, "assistant", "", state="streaming"))
        said: list[str] = []
        thought: list[str] = []
        state: State = "stopped"
        note = "Stopped."
        count = Count()
        try:
            await self._stream(services, text, answer, said, thought, count)
            state, note = "complete", ""
        except HearthError as error:
            state, note = "failed", f"{error.message} {error.hint}".strip()
        finally:
            shown = Shown(
                answer,
                "assistant",
                "".join(said),
                "".join(thought),
                state=state,
                note=note,  # type: ignore[arg-type]
            )
            await transcript.replace(shown)
            numbers = line_of(count.numbers())
            self.query_one(".numbers", Static).update(safe_text(numbers))

    async def _stream(
        self,
        services: Services,
        text: str,
        answer: str,
        said: list[str],
        thought: list[str],
        count: Count,
    ) -> None:
        transcript = self.query_one(Transcript)
        view = transcript.answer(answer)
        view.status("loading the model")
        chosen = services.choose(self.model, {})
        backend = await services.host.backend(chosen.spec)
        info = await backend.info()
        count.model, count.quantization = info.name, info.quantization
        thread = Thread(
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
            messages=0,
        )
        request = build(thread, [ChatMessage(answer, None, "user", text)], chosen.use, info)
        count.began_s = time.monotonic()
        generated = cast("AsyncGenerator[Event, None]", backend.generate(request))
        async with contextlib.aclosing(generated) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise from_info(event.error)
                if isinstance(event, Finished):
                    count.finished = event
                elif isinstance(event, Started):
                    count.started = event
                    view.status("reading the prompt")
                elif isinstance(event, Progress):
                    view.status(f"reading the prompt {event.done:,}/{event.total:,}")
                elif isinstance(event, Token):
                    count.tokens(len(event.ids))
                    (thought if event.channel == "reasoning" else said).append(event.text)
                    view.feed(event.text, event.channel)


class CompareScreen(ModalScreen[None]):
    """Two models, one prompt.

    Args:
        left, right: names of models; the right one may be empty.
    """

    DEFAULT_CSS = """
    CompareScreen { background: $background; }
    CompareScreen > Horizontal { height: 1fr; }
    CompareScreen > Input { margin: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "stop, then close", id="compare.close"),
    ]

    def __init__(self, services: Services, left: str, right: str = "") -> None:
        super().__init__()
        self._services = services
        self._left, self._right = left, right

    def compose(self) -> ComposeResult:
        names = [model.name for model in self._services.library.found()]
        left = self._left if self._left in names else names[0]
        others = [name for name in names if name != left]
        right = self._right if self._right in names else (others or names)[0]
        with Horizontal():
            yield Column(names, left, id="left")
            yield Column(names, right, id="right")
        yield Input(placeholder="One question for both", id="question")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#question", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if text:
            event.input.clear()
            self.ask(text)

    @work(group="compare", exclusive=True)
    async def ask(self, text: str) -> None:
        """Let both answer at the same time."""
        await asyncio.gather(*(column.ask(self._services, text) for column in self.query(Column)))

    def action_leave(self) -> None:
        """Stop the answers; with none under way, close."""
        running = [w for w in self.workers if w.group == "compare" and not w.is_finished]
        if running:
            self.workers.cancel_group(self, "compare")
        else:
            self.dismiss(None)
