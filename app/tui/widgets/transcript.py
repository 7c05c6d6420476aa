"""The scrolling view of a chat: a window of its messages, which follows the end if it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual.await_remove import AwaitRemove
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

from hearth.app.tui.widgets.slab import prompt_of

if TYPE_CHECKING:
    from hearth.app.tui.widgets.answer import AnswerView
    from hearth.app.tui.widgets.message import MessageView, Shown


STEP: Final = 10
"""Most messages by which the window moves."""
STEP_CHARS: Final = 4000
"""Approximate characters that one step mounts, with at least two messages."""
MOST: Final = 40
"""Most messages that stay mounted."""


@dataclass(frozen=True, slots=True)
class Window:
    """The range of the mounted messages, from `first` to before `end`.

    The `sizes` that the methods take are the numbers of characters of the chat's messages.
    """

    first: int
    end: int

    @classmethod
    def last_of(cls, sizes: Sequence[int]) -> Window:
        """The window at the end of a chat."""
        return cls(len(sizes) - _step(sizes[::-1]), len(sizes))

    @classmethod
    def around(cls, number: int, sizes: Sequence[int]) -> Window:
        """The window of a message and some on both sides."""
        before = sizes[max(number - STEP, 0) : number][::-1]
        after = sizes[number : number + STEP]
        return cls(number - _step(before), number + max(_step(after), 1))

    def earlier(self, sizes: Sequence[int]) -> Window:
        """The window with more at the start, and less at the end if it becomes too long."""
        first = self.first - _step(sizes[max(self.first - STEP, 0) : self.first][::-1])
        return Window(first, min(self.end, max(first + MOST, self.first + 1)))

    def later(self, sizes: Sequence[int]) -> Window:
        """The window with more at the end, and less at the start if it becomes too long."""
        end = self.end + _step(sizes[self.end : self.end + STEP])
        return Window(max(self.first, min(end - MOST, self.end - 1)), end)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number < self.end


async def _finished(removal: AwaitRemove) -> None:
    await removal


def _step(sizes: Sequence[int]) -> int:
    """How many messages one step mounts; `sizes` has the nearest message first."""
    chars = 0
    for number, size in enumerate(sizes[:STEP], 1):
        chars += size
        if number >= 2 and chars >= STEP_CHARS:
            return number
    return min(len(sizes), STEP)


class Transcript(VerticalScroll, can_focus=False):
    """The messages of a chat.

    Only a window of the messages is mounted; it moves with scrolling. At the end of the chat, the
    view follows new text. When it is scrolled up, the visible text stays in place, whatever changes
    above or below it, and new text of answers is buffered and not drawn.

    Args:
        has_keys: whether the messages have keys for actions on messages of a chat.
    """

    BLANK = True  # nothing of its own to draw
    DEFAULT_CSS = """
    Transcript {
        layout: stream;
        height: 1fr;
        padding: 1 1 0 1;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "select(-1)", "message before", id="transcript.previous", show=False),
        Binding("down", "select(1)", "next message", id="transcript.next", show=False),
        Binding("end", "follow", "end", id="transcript.end", show=False),
    ]

    def __init__(
        self,
        *,
        has_keys: bool = True,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id)
        self._has_keys = has_keys
        self._messages: list[Shown] = []
        self._mounted = Window(0, 0)
        self._views: dict[str, MessageView] = {}
        self._live: dict[str, AnswerView] = {}
        self._tops: dict[Widget, int] = {}  # y of the children at the last layout
        self._arranged: DockArrangeResult | None = None
        self._was_following = True
        self._changing = asyncio.Lock()

    def on_mount(self) -> None:
        self.anchor()

    @property
    def following(self) -> bool:
        """Whether the view is at the end of the chat and follows it."""
        return not self._anchor_released and self._mounted.end == len(self._messages)

    @property
    def selected(self) -> str | None:
        """The id of the message that has or contains the focus."""
        focused = self.screen.focused if self.is_attached else None
        around = focused.ancestors_with_self if focused is not None else []
        return next((name for name, view in self._views.items() if view in around), None)

    async def show(self, messages: Sequence[Shown]) -> None:
        """Show another chat, from its end."""
        async with self._changing:
            self._messages = list(messages)
            self._live.clear()
            await self._show_window(Window.last_of(self._sizes))
        self.action_follow()
        self.call_after_refresh(self._fill)

    async def append(self, shown: Shown) -> None:
        """Add a message at the end; its answer can be fed when this returns."""
        async with self._changing:
            at_end = self._mounted.end == len(self._messages)
            self._messages.append(shown)
            if not at_end:
                await self._show_window(Window.last_of(self._sizes))
                self.action_follow()
                return
            await self._mount_at_end([shown])
            if self.following and len(self._views) > MOST:
                await self._trim(Window(self._mounted.end - MOST, self._mounted.end))

    async def replace(self, shown: Shown) -> None:
        """Show another state of the message with the id of `shown`, which must not be streaming.

        Raises KeyError if there is no such message.
        """
        async with self._changing:
            self._messages[self._numbers[shown.id]] = shown
            self._live.pop(shown.id, None)
            if (view := self._views.get(shown.id)) is not None:
                await view.show(shown)

    async def remove_after(self, id: str) -> None:  # noqa: A002 - the id of Shown
        """Remove everything after a message; raises KeyError if there is no such message."""
        async with self._changing:
            end = self._numbers[id] + 1
            gone = self._messages[end:]
            del self._messages[end:]
            for shown in gone:
                self._live.pop(shown.id, None)
                await self._remove(shown.id)
            if not self._views and self._messages:
                await self._show_window(Window.last_of(self._sizes))
            self._mounted = Window(self._mounted.first, min(self._mounted.end, end))

    def answer(self, id: str) -> AnswerView:  # noqa: A002 - the id of Shown
        """The view that takes the text of a streaming message; raises KeyError if there is none."""
        return self._live[id]

    async def jump_to(self, id: str) -> None:  # noqa: A002 - the id of Shown
        """Scroll a message to the top and mark it.

        Nothing happens if there is no such message, because another chat may have been opened
        meanwhile.
        """
        async with self._changing:
            number = self._numbers.get(id)
            if number is None:
                return
            if number not in self._mounted:
                await self._show_window(Window.around(number, self._sizes))
            view = self._views[id]
        for other in self._views.values():
            other.set_class(other is view, "-found")
        view.focus(scroll_visible=False)
        self.release_anchor()
        self._note_following()
        # Immediately, since a deferred target is stale once messages are mounted above.
        self.call_after_refresh(
            self.scroll_to_widget, view, animate=False, top=True, immediate=True
        )

    def action_follow(self) -> None:
        """Go to the end and follow it; mount the messages there if they are not."""
        if self._mounted.end < len(self._messages):
            self.run_worker(self._show_end(), group="transcript", exit_on_error=True)
            return
        self._anchor_released = False
        self.anchor()
        self._note_following()

    def action_select(self, step: int) -> None:
        """Move the focus to the previous or the next message.

        From elsewhere it moves to the last message, and from there down to the prompt.
        """
        views, selected = self._sorted(), self.selected
        names = [view.shown.id for view in views]
        place = names.index(selected) + step if selected in names else len(views) - 1
        if place == len(views) and self._mounted.end == len(self._messages):
            self._leave()
        elif 0 <= place < len(views):
            self._select(views[place])

    @property
    def selected_place(self) -> int | None:
        """The number of the selected message in the chat, from 0; None if none is selected."""
        return self._numbers.get(self.selected or "")

    def select_place(self, place: int) -> None:
        """Focus the message at `place`, or the last one before it."""
        numbers = self._numbers
        before = [view for view in self._sorted() if numbers[view.shown.id] <= place]
        if before:
            self._select(before[-1])

    def _sorted(self) -> list[MessageView]:
        """The views in the order of the chat, without those that are about to be removed."""
        return [self._views[name] for name in self._numbers if name in self._views]

    def _leave(self) -> None:
        self.screen.set_focus(prompt_of(self.screen))

    def _select(self, view: MessageView) -> None:
        view.remove_class("-found")
        self.screen.set_focus(view, scroll_visible=False)
        self.scroll_to_widget(
            view, animate=False, top=view.size.height > self.size.height, immediate=True
        )

    async def _show_end(self) -> None:
        async with self._changing:
            await self._show_window(Window.last_of(self._sizes))
        self.action_follow()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._note_following()
        page = self.size.height
        if new_value < old_value and new_value < page and self._mounted.first:
            self._move(up=True)
        elif new_value > self.max_scroll_y - page and self._mounted.end < len(self._messages):
            self._move(up=False)

    def _move(self, *, up: bool) -> None:
        if not self._changing.locked():
            self.run_worker(self._moved(up=up), group="transcript", exit_on_error=True)

    async def _moved(self, *, up: bool) -> None:
        async with self._changing:
            before = self._mounted
            wanted = before.earlier(self._sizes) if up else before.later(self._sizes)
            # One by one, so that the screen can be drawn in between.
            if up:
                for shown in self._messages[wanted.first : before.first][::-1]:
                    await self._mount_before(shown)
            else:
                for shown in self._messages[before.end : wanted.end]:
                    await self._mount_at_end([shown])
            await self._trim(wanted)
        self._note_following()
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        """Keep a page of messages mounted above the visible part."""
        if self._mounted.first and self.scroll_y < self.size.height:
            self._move(up=True)

    def _note_following(self) -> None:
        """Draw streaming answers only while their end is in view."""
        if self.following != self._was_following:
            self._was_following = self.following
            for view in self._views.values():
                view.answer.paused(not self.following)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Lay out the messages; when scrolled up, the visible text stays in place on the screen."""
        result = super().arrange(size, optimal)
        if result is self._arranged:
            return result
        is_long = result.total_region.bottom > size.height
        if not is_long:
            # All is visible. Textual would put the end of an anchored text at the lower edge.
            self._anchor_released = False
            self._place(0)
        self._anchored = is_long
        tops = {placement.widget: placement.region.y for placement in result.placements}
        if self._anchor_released:
            above = [widget for widget, top in self._tops.items() if top <= self.scroll_y]
            below = [widget for widget in self._tops if widget not in above]
            kept = next((widget for widget in [*above[::-1], *below] if widget in tops), None)
            moved = 0 if kept is None else tops[kept] - self._tops[kept]
            most = result.total_region.bottom - size.height
            self._place(min(max(self.scroll_y + moved, 0), most))
        self._tops, self._arranged = tops, result
        return result

    @property
    def _sizes(self) -> list[int]:
        return [len(shown.content) + len(shown.reasoning) for shown in self._messages]

    def _place(self, scroll_y: float) -> None:
        """Set the scroll position in a layout, before the children are placed.

        The compositor does the same.
        """
        if scroll_y != self.scroll_y:
            self.set_reactive(Widget.scroll_y, scroll_y)
            self.set_reactive(Widget.scroll_target_y, scroll_y)

    @property
    def _numbers(self) -> dict[str, int]:
        """The number of each message in the chat, by its id."""
        return {shown.id: number for number, shown in enumerate(self._messages)}

    async def _view(self, shown: Shown) -> MessageView:
        """Make the view of a message that will be mounted; a streaming one keeps its text."""
        # Imported with the first message, not before the app is drawn.
        from hearth.app.tui.widgets.message import MessageView

        live = self._live.get(shown.id)
        if live is not None:
            shown = replace(shown, content=live.content, reasoning=live.reasoning)
        view = MessageView(shown, has_keys=self._has_keys)
        await view.prepare()
        if shown.state == "streaming":
            if live is not None:
                live.hand_to(view.answer)
            self._live[shown.id] = view.answer
        self._views[shown.id] = view
        return view

    async def _show_window(self, window: Window) -> None:
        with self.app.batch_update():
            for name in list(self._views):
                await self._remove(name)
            self._mounted = Window(window.first, window.first)
            self._tops = {}
            await self._mount_at_end(self._messages[window.first : window.end])

    async def _mount_at_end(self, messages: Sequence[Shown]) -> None:
        views = [await self._view(shown) for shown in messages]
        self._mounted = Window(self._mounted.first, self._mounted.end + len(views))
        for view in views:
            view.answer.paused(not self.following)
        await self.mount_all(views)

    async def _mount_before(self, shown: Shown) -> None:
        view = await self._view(shown)
        self._mounted = Window(self._mounted.first - 1, self._mounted.end)
        await self.mount(view, before=0)

    async def _remove(self, name: str) -> None:
        """Remove a message's view, if it has one; if that has the focus, the prompt gets it."""
        view = self._views.pop(name, None)
        if view is not None:
            if view.has_focus_within:
                self._leave()
            # Shielded: cancelling the waiting task would also cancel the view's own task.
            await asyncio.shield(_finished(view.remove()))

    async def _trim(self, window: Window) -> None:
        """Remove the views outside `window`."""
        mounted = self._messages[self._mounted.first : self._mounted.end]
        for number, shown in enumerate(mounted, self._mounted.first):
            if number not in window:
                await self._remove(shown.id)
        self._mounted = Window(
            max(window.first, self._mounted.first), min(window.end, self._mounted.end)
        )
