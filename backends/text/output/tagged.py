"""The parser of most families: reasoning between two tags first, then text, in which markers begin
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from hearth.backends.contract.events import Channel
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Collector
from hearth.backends.text.output.json_scanner import SPACE
from hearth.backends.text.output.markers import MarkerSearch
from hearth.backends.text.output.parts import Part
from hearth.backends.text.output.reading import ReadCall, Reader, feed, finish


@dataclass(frozen=True, slots=True)
class Style:
    """How a family writes. Markers are texts; none begins with another one."""

    think: tuple[str, str] | None = None
    """Begins and ends reasoning."""
    calls: dict[str, ReadCall] = field(default_factory=dict)
    """Markers that begin a call, and how what follows them is read."""
    bare: ReadCall | None = None
    """Reads a call that begins the answer, or follows a call, with a bracket and no marker."""
    modest: frozenset[str] = frozenset()
    """Of `calls`, those that often begin something else."""
    closers: tuple[str, ...] = ()
    """Markers that end a call and say nothing more."""
    separators: str = ""
    """Characters, besides white space, that may stand between calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them."""
        return (*(self.think or ()), *self.calls, *self.closers)


class TaggedParser:
    """Reads one answer in a `Style`; an `OutputParser`.

    Of white space, only this is dropped: newlines at both ends of the reasoning and right after it,
    and what stands before, between and after calls that could be read.

    Args:
        tools: may be called; none: nothing is read as a call.
        is_thinking: the prompt ends inside reasoning.
        make_id: gives the ids of calls.
        is_required: the answer is calls and nothing else.
    """

    def __init__(
        self,
        style: Style,
        tools: Collection[Tool],
        *,
        is_thinking: bool,
        make_id: Callable[[], str],
        is_required: bool = False,
    ) -> None:
        self._style = style
        self._is_required = is_required and bool(tools)
        self._calls = style.calls if tools else {}
        self._bare = style.bare if tools else None
        self._collector = Collector({tool.name for tool in tools}, make_id)
        self._begin_marks = MarkerSearch(tuple(self._calls))
        self._end_of_thought = MarkerSearch(style.think[1:] if style.think else ())
        self._space: list[str] = []
        """White space that may have to be dropped."""
        self._candidate = ""
        """Text in which a marker may have begun that only means something here."""
        self._expected: tuple[str, ...] = style.think[:1] if style.think else ()
        """The markers that mean something here and not elsewhere."""
        self._trim: Callable[[str], str] = str
        """What is left of white space at the beginning of a text."""
        self._skipped = SPACE
        self._reader: Reader[None] | None = None
        self._step = self._thinking if is_thinking else self._edge
        self._has_thought = False

    @property
    def channel(self) -> Channel:
        return "reasoning" if self._step == self._thinking else "content"

    @property
    def calls(self) -> int:
        return self._collector.calls

    @property
    def notices(self) -> tuple[str, ...]:
        return self._collector.notices

    def push(self, text: str) -> list[Part]:
        self._read(text)
        return self._collector.take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        if self._step == self._reading and cut:
            assert self._reader is not None
            finish(self._reader, self._collector)
        elif self._step == self._reading:
            self._collector.give_up(at_end=True)
        elif cut and self._step != self._thinking and self._is_calling:
            pass  # What is held is white space, or a part of a marker.
        elif self._step == self._edge:
            self._collector.say(self._trim(self._take_space()) + self._candidate)
        elif self._step == self._thinking:
            self._collector.say(self._take_space() + self._end_of_thought.finish(), "reasoning")
        else:
            self._collector.say(self._take_space() + self._begin_marks.finish())
        self._candidate = ""
        self._step = self._text
        return self._collector.take()

    @property
    def _is_calling(self) -> bool:
        """Can nothing but a call, or what belongs to one, have begun?"""
        return self._is_required or (self._step == self._edge and self._collector.calls > 0)

    def _read(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._step(text, at)

    def _edge(self, text: str, at: int) -> int:
        """The beginning of the answer, or of what follows reasoning or a call: takes one character,
        or goes over to another state.
        """
        char = text[at]
        if not self._candidate:
            if char in self._skipped:
                self._space.append(char)
                return at + 1
            if self._bare is not None and char in "{[":
                space = self._trim(self._take_space())
                self._begin_call(self._bare, space, is_suspect=False)
                return at
        self._candidate += char
        if self._candidate in self._expected:
            self._candidate = ""
            if self._style.think and self._expected == self._style.think[:1]:
                self._space.clear()
                self._step = self._thinking
            return at + 1
        if not any(marker.startswith(self._candidate) for marker in self._expected):
            space, candidate = self._trim(self._take_space()), self._candidate
            self._candidate = ""
            self._step = self._text
            self._say(space)
            self._read(candidate)
        return at + 1

    def _thinking(self, text: str, at: int) -> int:
        shown, marker, at = self._end_of_thought.find(text, at)
        if not self._has_thought:
            shown = shown.lstrip("\n")
        if shown:
            self._has_thought = True
            self._say(shown, "\n", "reasoning")
        if marker is not None:
            self._space.clear()
            self._go_to_edge((), _without_newlines)
        return at

    def _text(self, text: str, at: int) -> int:
        shown, marker, at = self._begin_marks.find(text, at)
        self._say(shown)
        if marker is not None:
            is_suspect = marker not in self._style.modest
            unsaid = self._take_space() + marker
            self._begin_call(self._calls[marker], unsaid, is_suspect=is_suspect)
        return at

    def _say(self, text: str, spaces: str = SPACE, channel: Channel = "content") -> None:
        """Give `text`, less the white space at its end, which waits for what follows."""
        if not self._calls and channel == "content":
            self._collector.say(text)
            return
        solid = text.rstrip(spaces)
        if solid:
            self._collector.say(self._take_space() + solid, channel)
        self._space.append(text[len(solid) :])

    def _take_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space

    def _begin_call(self, read: ReadCall, unsaid: str, *, is_suspect: bool) -> None:
        self._collector.begin_call(unsaid, is_suspect=is_suspect or self._is_required)
        self._reader = read(self._collector)
        next(self._reader)
        self._step = self._reading

    def _reading(self, text: str, at: int) -> int:
        assert self._reader is not None
        at, is_read = feed(self._reader, self._collector, text, at)
        if is_read:
            self._skipped = SPACE + self._style.separators
            self._go_to_edge(self._style.closers, _without_space)
        elif is_read is False:
            self._step = self._text
        return at

    def _go_to_edge(self, expected: Sequence[str], trim: Callable[[str], str]) -> None:
        self._expected = tuple(expected)
        self._trim = trim
        self._step = self._edge


def _without_newlines(text: str) -> str:
    return text.lstrip("\n")


def _without_space(text: str) -> str:
    return text.lstrip(SPACE)
