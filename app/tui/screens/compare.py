"""Sends one prompt to two models, side by side.

The answers stream together, or, to show what quantizing changed, one after the other with greedy
decoding.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input, Static

from hearth.app.chats.titles import title_from
from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import KeyBar, TopBar
from hearth.app.tui.widgets.compare_column import CompareColumn
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.app.tui.app import HearthApp

_SHOWN_WORDS: Final = 3
_BUSY: Final = "Answers are in progress: esc stops them."


class CompareScreen(Dialog[None]):
    """Two models, one prompt; the better one can be continued as a chat.

    Args:
        names: the installed models.
        left, right: names or paths of models; an empty `right` stands for another installed model.
        is_paired: original and quantized model, from the library. Both decode greedily, the right
            one after the left one, so that their speeds can be compared and only one needs to be in
            memory; the first difference is shown.
    """

    DEFAULT_CSS = """
    CompareScreen { background: $background; }
    CompareScreen > .columns { height: 1fr; layout: horizontal; }
    CompareScreen #right { border-left: solid $panel; }
    CompareScreen > #difference { height: auto; padding: 0 1; display: none; }
    CompareScreen > #difference.-on { display: block; }
    CompareScreen > SafeInput { margin: 0; }
    CompareScreen.-narrow > .columns { layout: vertical; }
    CompareScreen.-narrow #right { border-left: none; border-top: solid $panel; }
    """
    AUTO_FOCUS = "#question"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "stop / close", id="compare.close"),
        Binding("ctrl+l", "go_on('left')", "keep left", id="compare.left"),
        Binding("ctrl+r", "go_on('right')", "keep right", id="compare.right"),
    ]

    def __init__(
        self,
        services: Services,
        names: Sequence[str],
        left: str,
        right: str = "",
        *,
        is_paired: bool = False,
    ) -> None:
        super().__init__()
        self._is_paired = is_paired
        self._services = services
        self._names = names
        self._left, self._right = left, right

    def compose(self) -> ComposeResult:
        others = [name for name in self._names if name != self._left]
        right = self._right or (others[0] if others else self._left)
        names = list(dict.fromkeys((self._left, right, *self._names)))
        here = "library" if self._is_paired else "chat"
        yield TopBar(here, cast("HearthApp", self.app).tab_keys())
        with Container(classes="columns"):
            for side, model in (("left", self._left), ("right", right)):
                yield CompareColumn(
                    self._services, names, model, id=side, is_greedy=self._is_paired
                )
        yield Static("", id="difference", markup=False)
        yield SafeInput(placeholder="A question for both models; Enter sends it", id="question")
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the running jobs in the top bar."""
        cast("HearthApp", self.app).show_activity()

    @property
    def is_busy(self) -> bool:
        """Whether answers are in progress."""
        return any(one.group == "compare" and not one.is_finished for one in self.workers)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask both models, unless answers are in progress."""
        text = event.value.strip()
        if self.is_busy:
            self._show_note(_BUSY)
        elif text:
            event.input.clear()
            self.ask(text)

    @work(group="compare", exclusive=True)
    async def ask(self, text: str) -> None:
        """Let both models answer: at the same time, or one after the other if they are a pair."""
        columns = self.query(CompareColumn)
        if not self._is_paired:
            await asyncio.gather(*(column.ask(text) for column in columns))
            return
        self._show_difference("")
        left, right = [await column.ask(text) for column in columns]
        if "failed" not in (left.state, right.state):
            self._show_difference(difference(left, right))

    def _show_difference(self, text: str) -> None:
        line = self.query_one("#difference", Static)
        line.update(safe_text(text))
        line.set_class(bool(text), "-on")

    def action_leave(self) -> None:
        """Stop the answers; if none is in progress, close the screen."""
        if self.is_busy:
            self.workers.cancel_group(self, "compare")
        else:
            self.dismiss(None)

    @work(group="go-on", exclusive=True)
    async def action_go_on(self, side: str) -> None:
        """Keep one side as a chat, and continue there."""
        column = self.query_one(f"#{side}", CompareColumn)
        if self.is_busy or not column.messages:
            self._show_note(_BUSY if self.is_busy else "Ask a question first.")
            return
        first, *_, last = messages = column.messages
        thread = Thread(
            "",
            title_from(first.content),
            first.created_at,
            last.created_at,
            model=column.model,
            leaf=last.id,
        )
        try:
            kept = await asyncio.to_thread(self._services.chats.insert, thread, messages)
        except HearthError as error:
            self._show_note(str(error))
            return
        cast("HearthApp", self.app).wanted_thread = kept.id
        self.dismiss(None)  # The chat screen below opens it.

    def _show_note(self, text: str) -> None:
        self.app.notify(safe_text(text), severity="warning", markup=False)


def difference(left: ChatMessage, right: ChatMessage) -> str:
    """Where two answers, thoughts included, first differ, and the words that follow in each."""
    one, other = (
        re.findall(r"\S+", f"{answer.reasoning}\n{answer.content}") for answer in (left, right)
    )
    if one == other:
        return f"Both answers are the same, {len(one):,} words."
    same = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    after = [" ".join(words[same : same + _SHOWN_WORDS]) for words in (one, other)]
    told = [f"“{text}”" if text else "the end" for text in after]
    return f"The same for {same:,} words; then {told[0]} on the left, {told[1]} on the right."
