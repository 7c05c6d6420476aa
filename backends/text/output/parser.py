"""Base class of output parsers: the state machine, and the driver of readers of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from hearth.backends.contract.events import Channel, Part
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.reading import Reader


class OutputParser(ABC):
    """Parses the text of one answer. Text is never lost: an unreadable call is emitted as content,
    unchanged. Runs in linear time for any text.

    Args:
        tools: the tools that may be called; if empty, nothing is read as a call.
        make_id: returns the id of a new call.
    """

    def __init__(self, tools: Collection[Tool], make_id: Callable[[], str]) -> None:
        self._collector = Collector({tool.name for tool in tools}, make_id)
        self._reader: Reader[None] | None = None
        """The reader of the call that is being read."""
        self._step = self._in_text
        """Reads text from a position, and returns the position after the last character read."""

    @property
    @abstractmethod
    def channel(self) -> Channel:
        """The channel of text that would come next, as far as it is decided."""

    @property
    def calls(self) -> int:
        """Number of complete tool calls."""
        return self._collector.calls

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user, e.g. that a call could not be read."""
        return self._collector.notices

    def push(self, text: str) -> list[Part]:
        """Parse more text; returns the parts that it completes."""
        self._read(text)
        return self._collector.take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """End the answer; returns everything that was held back.

        Args:
            cut: the answer was cut off before the model ended it. The beginning of a call is then
                a call if its name is certain, and otherwise left out.
        """
        if self._reader is None:
            self._end_text(cut=cut)
        elif cut:
            self._cut_call(self._reader)
        else:
            self._collector.give_up(at_end=True)
        self._reader = None
        self._step = self._in_text
        return self._collector.take()

    def _read(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._step(text, at)

    @abstractmethod
    def _in_text(self, text: str, at: int) -> int:
        """The step that reads text between calls."""

    @abstractmethod
    def _end_text(self, *, cut: bool) -> None:
        """End the answer outside of a call; `cut` as for `finish`."""

    @abstractmethod
    def _after_call(self) -> None:
        """Choose the next step after a complete call."""

    def _read_call(self, reader: Reader[None]) -> None:
        """Send the text that follows to `reader`."""
        next(reader)
        self._reader = reader
        self._step = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        """Send text to the reader. If it cannot go on, the text that it read becomes content."""
        assert self._reader is not None
        unsaid = self._collector.unsaid
        for index in range(at, len(text)):
            unsaid.append(text[index])
            try:
                self._reader.send(text[index])
            except StopIteration:
                unsaid.clear()
                is_read, at = True, index + 1
                break
            except Unreadable:
                unsaid.pop()
                is_read, at = self._collector.give_up(at_end=False), index
                break
        else:
            return len(text)
        self._reader = None
        self._step = self._in_text
        if is_read:
            self._after_call()
        return at

    def _cut_call(self, reader: Reader[None]) -> None:
        name = ""
        try:
            reader.throw(Cut())
        except Cut as cut:
            name = cut.name
        except Unreadable:
            self._collector.give_up(at_end=False)
            return
        self._collector.cut_off(name)
