"""The parser of most families: reasoning between two tags first, then text, in which markers begin
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hearth.backends.contract.events import Channel
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.json_scanner import SPACE
from hearth.backends.text.output.parser import OutputParser
from hearth.backends.text.output.reading import ReadCall
from hearth.backends.text.stops import MarkerSearch


@dataclass(frozen=True, slots=True)
class Style:
    """How a family writes. Markers are texts; none begins with another one."""

    think: tuple[str, str] | None = None
    """Begins and ends reasoning."""
    calls: Mapping[str, ReadCall] = field(default_factory=dict)
    """Markers that begin a call, and how what follows them is read."""
    bare: ReadCall | None = None
    """Reads a call that begins the answer, or follows a call, with a bracket and no marker."""
    ambiguous: frozenset[str] = frozenset()
    """Of `calls`, those that often begin something else."""
    closers: tuple[str, ...] = ()
    """Markers that end a call and say nothing more."""
    separators: str = ""
    """Characters, besides white space, that may stand between calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them."""
        return (*(self.think or ()), *self.calls, *self.closers)


class TaggedParser(OutputParser):
    """Reads one answer in a `Style`.

    Of white space, only this is dropped: newlines at both ends of the reasoning and right after it,
    and what stands before, between and after calls that could be read.

    Args:
        is_thinking: the prompt ends inside reasoning.
        is_required: the answer is calls and nothing else.
    """

    def __init__(
        self,
        style: Style,
        tools: Collection[Tool],
        make_id: Callable[[], str],
        *,
        is_thinking: bool,
        is_required: bool,
    ) -> None:
        super().__init__(tools, make_id)
        self._style = style
        self._is_required = is_required and bool(tools)
        self._calls = style.calls if tools else {}
        self._bare = style.bare if tools else None
        self._begin_marks = MarkerSearch(tuple(self._calls))
        self._end_of_thought = MarkerSearch(style.think[1:] if style.think else ())
        self._space: list[str] = []
        """White space that may have to be dropped."""
        self._candidate = ""
        """Text in which a marker may have begun that only means something here."""
        self._expected: tuple[str, ...] = style.think[:1] if style.think else ()
        """The markers that mean something here and not elsewhere."""
        self._trimmed = ""
        """White space that is dropped at the beginning of a text."""
        self._skipped = SPACE
        self._step = self._thinking if is_thinking else self._edge
        self._has_thought = False

    @property
    def channel(self) -> Channel:
        return "reasoning" if self._step == self._thinking else "content"

    def _end_text(self, *, cut: bool) -> None:
        if cut and self._step != self._thinking and self._is_calling:
            pass  # What is held is white space, or a part of a marker.
        elif self._step == self._edge:
            self._collector.say(self._take_space().lstrip(self._trimmed) + self._candidate)
        elif self._step == self._thinking:
            self._collector.say(self._take_space() + self._end_of_thought.finish(), "reasoning")
        else:
            self._collector.say(self._take_space() + self._begin_marks.finish())
        self._candidate = ""

    @property
    def _is_calling(self) -> bool:
        """Can nothing but a call, or what belongs to one, have begun?"""
        return self._is_required or (self._step == self._edge and self._collector.calls > 0)

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
                space = self._take_space().lstrip(self._trimmed)
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
            space, candidate = self._take_space().lstrip(self._trimmed), self._candidate
            self._candidate = ""
            self._step = self._in_text
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
            self._go_to_edge((), "\n")
        return at

    def _in_text(self, text: str, at: int) -> int:
        shown, marker, at = self._begin_marks.find(text, at)
        self._say(shown)
        if marker is not None:
            is_suspect = marker not in self._style.ambiguous
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
        self._read_call(read(self._collector))

    def _after_call(self) -> None:
        self._skipped = SPACE + self._style.separators
        self._go_to_edge(self._style.closers, SPACE)

    def _go_to_edge(self, expected: tuple[str, ...], trimmed: str) -> None:
        self._expected = expected
        self._trimmed = trimmed
        self._step = self._edge
