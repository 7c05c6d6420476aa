"""Collects the parts of one answer, in order, while it is parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from hearth.backends.contract.events import Channel, Part, Token, ToolCallPart
from hearth.backends.text.output.json_scanner import SPACE

UNREAD: Final = "A tool call could not be read and was given as text."
CUT: Final = "A tool call was cut off before its end: its arguments are incomplete."
CUT_EARLY: Final = "A tool call was cut off before its name was complete, and is left out."


class Unreadable(Exception):
    """The text is not a readable call. Raised by readers of calls, caught by parsers."""


class Cut(Exception):
    """Thrown into a reader of a call when the text ends early; readers raise it again with details.

    Args:
        read: the beginning of the string or word that was being read.
        name: the beginning of the call's name.
    """

    def __init__(self, read: str = "", name: str = "") -> None:
        super().__init__(read)
        self.read = read
        self.name = name


class Collector:
    """The parts of one answer.

    Parts of a call are emitted from the moment its name is known to be that of a tool. `unsaid` is
    the text read of a call that is not in any part yet: it becomes content if the call turns out to
    be unreadable, so that no text is lost or emitted twice.

    Args:
        tools: names of the tools that may be called.
        make_id: returns the id of a new call.
    """

    def __init__(self, tools: Collection[str], make_id: Callable[[], str]) -> None:
        self.unsaid: list[str] = []
        self.calls = 0
        """Number of complete calls."""
        self.is_suspect = False
        """The text being read is meant as a call, whether or not it can be read."""
        self._tools = tools
        self._make_id = make_id
        self._parts: list[Part] = []
        self._texts: list[str] = []
        self._channel: Channel = "content"
        self._arguments: list[str] = []
        self._position = -1
        self._is_open = False
        self._early: list[str] = []
        """Arguments that came before the name."""
        self._has_arguments = False
        self._notices: dict[str, None] = {}

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._notices)

    def take(self) -> list[Part]:
        """All parts since the last call of this method."""
        self._flush()
        parts, self._parts = self._parts, []
        return parts

    def add_text(self, text: str, channel: Channel = "content") -> None:
        """Append text of a channel."""
        if not text:
            return
        if channel != self._channel or self._arguments:
            self._flush()
            self._channel = channel
        self._texts.append(text)

    def begin_call(self, unsaid: str, *, is_suspect: bool) -> None:
        """A call may begin here; `unsaid` is the text already read of it."""
        self.unsaid[:] = [unsaid]
        self.is_suspect = is_suspect

    def open_call(self, name: str, ident: str = "") -> None:
        """The name of the call is known.

        Raises:
            Unreadable: no tool has this name.
        """
        self.is_suspect = True
        if name not in self._tools:
            raise Unreadable
        self._flush()
        self._position += 1
        self._is_open = True
        self._parts.append(ToolCallPart(self._position, ident or self._make_id(), name))
        self.unsaid.clear()
        if self._early:
            self.write_arguments("".join(self._early))

    def write_arguments(self, piece: str, unsaid: str = "") -> None:
        """Append `piece` to the arguments' JSON text; of all text read, only `unsaid` is not in a
        part then. Arguments that come before the name wait for it.
        """
        if not self._is_open:
            self._early.append(piece)
            return
        if self._texts:
            self._flush()
        self._arguments.append(piece)
        self.unsaid.clear()
        if unsaid:
            self.unsaid.append(unsaid)

    def end_arguments(self) -> None:
        """The arguments are complete, though the text around them may go on."""
        self._has_arguments = True

    def close_call(self) -> None:
        """The call is complete."""
        self.calls += 1
        self._leave_call()

    def give_up(self, *, at_end: bool) -> bool:
        """Stop reading the call: it is unreadable, or (`at_end`) the text has ended. Text that is
        not in a part yet becomes content. A call is complete if its arguments are, and no such text
        is left.

        Returns:
            Whether the call is complete.
        """
        unsaid = "".join(self.unsaid)
        if self._is_open and self._has_arguments and not unsaid.strip(SPACE):
            self.close_call()
            return True
        if self._is_open and at_end:
            self._notices[CUT] = None
        elif self._is_open or (self.is_suspect and unsaid.strip(SPACE)):
            self._notices[UNREAD] = None
        self._leave_call()
        self.add_text(unsaid)
        return False

    def cut_off(self, name: str) -> None:
        """Stop reading the call, because the answer was cut off in it. It is kept with the
        arguments so far if its name is known, or if `name`, the beginning of it, fits only one
        tool. Otherwise it is left out with a notice or, if it may not be a call, becomes content.
        """
        unsaid = "".join(self.unsaid)
        if not self._is_open and (tool := self.only_tool(name)):
            self.open_call(tool)
        if self._is_open and self._has_arguments:
            self.close_call()
        elif self._is_open or self.is_suspect:
            self._notices[CUT if self._is_open else CUT_EARLY] = None
        else:
            self.add_text(unsaid)
        self._leave_call()

    def _leave_call(self) -> None:
        self._is_open = self._has_arguments = self.is_suspect = False
        self._early.clear()
        self.unsaid.clear()

    def only_tool(self, begun: str) -> str:
        """The only tool whose name begins with `begun`; "" if not unique, or not surely a call."""
        if not begun and not self.is_suspect:
            return ""
        names = [name for name in self._tools if name.startswith(begun)]
        return names[0] if len(names) == 1 else ""

    def _flush(self) -> None:
        if self._texts:
            self._parts.append(Token("".join(self._texts), channel=self._channel))
            self._texts.clear()
        if self._arguments:
            self._parts.append(ToolCallPart(self._position, arguments="".join(self._arguments)))
            self._arguments.clear()
