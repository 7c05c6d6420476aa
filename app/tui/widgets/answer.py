"""The text of a message, while it is written and afterwards: thoughts, answer, state."""

from __future__ import annotations

import time
from typing import Final, Literal

from textual.app import ComposeResult
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from hearth.app.tui.widgets.body import Body
from hearth.app.tui.widgets.cells import Incoming, shown_text
from hearth.app.tui.widgets.folded import Thinking
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.slab import Slab

SHORTEST_S: Final = 1 / 18
LONGEST_S: Final = 0.5
"""Between two updates of the screen."""
SHARE: Final = 0.2
"""Of the time, at most, goes into drawing an answer."""
AT_ONCE: Final = 1500
"""Characters that one update shows at most."""
Form = Literal["markdown", "json", "plain"]


class AnswerView(Widget):
    """Shows streamed text, a few times a second at whatever rate it arrives.

    Args:
        form: read the content as Markdown, show it as a block of code, or as it is.
        show_thinking: unfold the thoughts.
    """

    BLANK = True  # nothing of its own to draw
    DEFAULT_CSS = """
    AnswerView { width: 1fr; height: auto; layout: stream; }
    """

    def __init__(
        self,
        *,
        form: Form = "markdown",
        show_thinking: bool = False,
    ) -> None:
        super().__init__()
        self._form = form
        self._show_thinking = show_thinking
        self._content = Incoming()
        self._reasoning = Incoming()
        self._thinking = Thinking(show_thinking)
        self._body = Body(self)
        self._has_fence = False
        self._status: Slab | None = None
        self._paused_updates = False
        self._update_timer: Timer | None = None
        self._interval_s = SHORTEST_S
        self._is_drawing = False
        self._heir: AnswerView | None = None

    def compose(self) -> ComposeResult:
        # What is empty is not mounted: that is most of a long chat's widgets.
        if self._thinking.has_text:
            yield self._thinking
        yield from self._body.parts
        if self._status is not None:
            yield self._status

    def on_mount(self) -> None:
        self._schedule()

    @property
    def content(self) -> str:
        """The answer so far, as it came."""
        return self._content.raw

    @property
    def reasoning(self) -> str:
        """The thoughts so far, as they came."""
        return self._reasoning.raw

    @property
    def is_behind(self) -> bool:
        """Text came that is not shown yet."""
        return self._body.pending or self._thinking.pending

    @property
    def codes(self) -> list[str]:
        """The code blocks so far, by their number less one."""
        return self._body.codes

    @property
    def thinking(self) -> Thinking:
        """The thoughts' widget."""
        return self._thinking

    def feed(self, text: str, channel: Literal["content", "reasoning"] = "content") -> None:
        """Take more text; cheap, and to be called as often as text comes."""
        if self._heir is not None:
            self._heir.feed(text, channel)
        if channel == "reasoning":
            self._thinking.feed(self._reasoning.feed(text))
        else:
            self._feed_body(self._content.feed(text))
        self._schedule()

    def status(self, text: str) -> None:
        """Show the state of the answer, where its text will come."""
        if self._heir is not None:
            self._heir.status(text)
        text = " ".join(shown_text(text).split())
        lines = [Line(Content.styled(text, ".muted"))]
        if not text:
            if self._status is not None:
                self._status.remove()
            self._status = self._body.before = None
        elif self._status is None:
            self._status = Slab(lines)
            if self.is_attached:
                self.mount(self._status)
            self._body.before = self._status
        else:
            self._status.replace(lines)

    async def become(self, content: str, reasoning: str, form: Form | None = None) -> None:
        """Show a text that is complete; what is there already stays."""
        self._stop_timer()
        if reasoning.strip() != self.reasoning.strip():
            self._reasoning = Incoming()
            other = Thinking(self._thinking.is_open)
            other.feed(self._reasoning.feed(reasoning))
            if self._thinking.is_attached:
                await self._thinking.remove()
            self._thinking = other
        form = form or self._form
        if form != self._form or content.strip() != self.content.strip():
            self._form = form
            self._content = Incoming()
            old, body = self._body, Body(self)
            body.before = old.before
            safe = self._content.feed(content)
            self._body, self._has_fence = body, False
            if self.is_attached:
                await self.remove_children(old.parts)
            if self._form == "plain":
                body.plain(safe)
            else:
                self._feed_body(safe)
        self._thinking.feed(self._reasoning.flush())
        self._think(is_done=True)
        self._body.feed(self._content.flush())
        await self._body.complete()

    def _feed_body(self, text: str) -> None:
        if text and self._form == "json" and not self._has_fence:
            self._has_fence = True
            self._body.feed("```json\n")
        self._body.feed(text)

    def catch_up(self) -> None:
        """Show at once what came, before the view is mounted."""
        self._think(is_done=bool(self.content))
        self._body.advance()

    def _think(self, *, is_done: bool) -> None:
        self._thinking.advance(is_done=is_done)
        if self._thinking.has_text and self.is_attached and not self._thinking.is_attached:
            self.mount(self._thinking, before=0 if self._nodes else None)

    def paused(self, is_paused: bool) -> None:
        """While its end is not in view, text is buffered and not drawn."""
        self._paused_updates = is_paused
        if is_paused:
            self._stop_timer()
        else:
            self._schedule()

    def hand_to(self, heir: AnswerView) -> None:
        """Another view shows the message from now on: what this one gets goes there too."""
        self._heir = heir

    def _schedule(self) -> None:
        idle = self._update_timer is None and not self._is_drawing
        if self.is_behind and idle and self.is_attached and not self._paused_updates:
            self._update_timer = self.set_timer(self._interval_s, self._tick)

    def _stop_timer(self) -> None:
        if self._update_timer is not None:
            self._update_timer.stop()
            self._update_timer = None

    def _tick(self) -> None:
        """Show what came; how long that takes decides when the next time is."""
        self._update_timer = None
        started = time.thread_time()
        self._is_drawing = True
        if self._thinking.pending:
            self._think(is_done=bool(self.content))
        self._body.advance(AT_ONCE)
        self.call_after_refresh(self._drawn, started)

    def _drawn(self, started: float) -> None:
        self._is_drawing = False
        cost_s = time.thread_time() - started
        self._interval_s = min(max(cost_s * (1 / SHARE - 1), SHORTEST_S), LONGEST_S)
        self._schedule()
