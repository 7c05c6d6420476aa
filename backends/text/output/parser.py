"""What parsers of output share: the state machine, and how a reader of calls is driven."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from hearth.backends.contract.events import Channel, Part
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.reading import Reader


class OutputParser(ABC):
    """Takes apart the text of one answer. Text is never lost: what cannot be read as a call comes
    out as content, unchanged. Linear in the length of the text, whatever it is.

    Args:
        tools: may be called; none: nothing is read as a call.
        make_id: gives the ids of calls.
    """

    def __init__(self, tools: Collection[Tool], make_id: Callable[[], str]) -> None:
        self._collector = Collector({tool.name for tool in tools}, make_id)
        self._reader: Reader[None] | None = None
        """Of the call that is being read."""
        self._step = self._in_text
        """Reads text from a place on, and returns how far."""

    @property
    @abstractmethod
    def channel(self) -> Channel:
        """What text that came now would be, as far as that is decided."""

    @property
    def calls(self) -> int:
        """Tool calls that are complete."""
        return self._collector.calls

    @property
    def notices(self) -> tuple[str, ...]:
        """What the reader should know, e.g. that a call could not be read."""
        return self._collector.notices

    def push(self, text: str) -> list[Part]:
        """What `text` completes."""
        self._read(text)
        return self._collector.take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The end: everything that was held back.

        Args:
            cut: the model had not ended. What it had written of a call is a call then, as far as
                its name is certain, and never content.
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
        """The end of the answer, outside of a call; `cut` as for `finish`."""

    @abstractmethod
    def _after_call(self) -> None:
        """A call was read to its end: choose the next step."""

    def _read_call(self, reader: Reader[None]) -> None:
        """What comes next is for `reader`."""
        next(reader)
        self._reader = reader
        self._step = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        """Send text to the reader. Where it cannot go on, what it read is content."""
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
