"""One side of a comparison: a model, and its own chat so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Select, Static

from hearth.app.chats.tree import ChatMessage, EndState, Numbers, Thread
from hearth.app.session.turn import StreamingAnswer, build
from hearth.app.terminal import safe_text
from hearth.app.tui.services import Services
from hearth.app.tui.shown import line_of, shown
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.contract.events import Progress, Started, Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import HearthError

_LOOK_EVERY_S: Final = 0.25


class CompareColumn(Vertical):
    """A model and its answers; later questions continue the chat.

    Args:
        names: models to choose from.
        model: the first model, one of `names`.
        is_greedy: decode greedily, whatever the settings say.
    """

    DEFAULT_CSS = """
    CompareColumn { width: 1fr; height: 1fr; }
    CompareColumn > Select { height: 1; margin: 0 1; }
    CompareColumn > .numbers { height: 1; padding: 0 1; color: $text-muted; }
    """

    def __init__(
        self,
        services: Services,
        names: Sequence[str],
        model: str,
        *,
        id: str,  # noqa: A002
        is_greedy: bool = False,
    ) -> None:
        super().__init__(id=id)
        self._is_greedy = is_greedy
        self._services = services
        self._names = names
        self._first = model
        self._coming: StreamingAnswer | None = None
        self._asked = 0
        self.messages: list[ChatMessage] = []
        """The messages so far, without questions whose answers failed before any text."""

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

    async def ask(self, text: str) -> ChatMessage:
        """Stream the answer to `text`, and return it.

        An error is shown in place of the answer; a cancelled answer keeps its text so far.
        """
        transcript = self.query_one(Transcript)
        self._asked += 1
        before = self.messages[-1].id if self.messages else None
        now = time.time()
        question = ChatMessage(f"question-{self._asked}", before, "user", text, created_at=now)
        began = replace(
            question,
            id=f"answer-{self._asked}",
            parent=question.id,
            role="assistant",
            content="",
            state="streaming",
            numbers=Numbers(model=self.model),
        )
        coming = self._coming = StreamingAnswer(began)
        await transcript.append(shown(question))
        await transcript.append(shown(began))
        state: EndState = "stopped"  # Until the answer is done, since it may be cancelled.
        why = ""
        try:
            await self._stream([*self.messages, question], coming)
            state = "complete"
        except HearthError as error:
            state = "failed"
            why = f"{error.message} {error.hint}".strip()
        finally:
            self._coming = None
            answer = coming.message(state, why)
            if answer.state != "failed" or answer.content:
                self.messages += [question, answer]
            if self.is_running and transcript.is_attached:  # The app may be leaving.
                self.query_one(".numbers", Static).update("")
                await transcript.replace(shown(answer))
        return answer

    async def _stream(self, messages: list[ChatMessage], coming: StreamingAnswer) -> None:
        view = self.query_one(Transcript).answer(coming.id)
        view.status("loading the model")
        loaded = await self._services.load(self.model, {})
        coming.info = loaded.info
        thread = Thread(f"compare-{self.id}", model=self.model)  # Not stored.
        use = loaded.chosen.use
        if self._is_greedy:
            use = replace(use, sampling=SamplingParams(temperature=0.0, seed=0))
        request = build(thread, messages, use, loaded.info)
        async with contextlib.aclosing(coming.follow(loaded.backend, request)) as events:
            async for event in events:
                if isinstance(event, Started):
                    view.status("reading the prompt")
                elif isinstance(event, Progress):
                    view.status(f"reading the prompt {event.done:,}/{event.total:,}")
                elif isinstance(event, Token):
                    view.feed(event.text, event.channel)

    def _show_numbers(self) -> None:
        """Show the numbers of the answer in progress; a finished one has its own below it."""
        if self._coming is not None:
            line = line_of(self._coming.numbers())
            self.query_one(".numbers", Static).update(safe_text(line))
