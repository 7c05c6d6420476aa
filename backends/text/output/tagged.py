"""The parser of most families: reasoning in tags, then text in which markers begin calls."""

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
    """How a family writes. Markers are texts; none is a prefix of another."""

    think: tuple[str, str] | None = None
    """The tags that begin and end reasoning."""
    calls: Mapping[str, ReadCall] = field(default_factory=dict)
    """Markers that begin a call, and the reader for the text after each."""
    bare: ReadCall | None = None
    """Reads a call without a marker: a bracket that begins the answer or follows a call."""
    ambiguous: frozenset[str] = frozenset()
    """Markers in `calls` that often begin something else."""
    closers: tuple[str, ...] = ()
    """Markers that end a call and have no other meaning."""
    separators: str = ""
    """Characters other than white space that may separate calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (*(self.think or ()), *self.calls, *self.closers)


class TaggedParser(OutputParser):
    """Reads one answer in a `Style`.

    The only white space that is dropped is newlines at both ends of the reasoning and right after
    it, and all white space before, between and after readable calls.

    Args:
        is_thinking: the prompt ends inside reasoning.
        is_required: the answer consists of calls and nothing else.
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
        """Text that may be the beginning of a marker in `_expected`."""
        self._expected: tuple[str, ...] = style.think[:1] if style.think else ()
        """Markers that have a meaning only at this position."""
        self._trimmed = ""
        """White space characters that are dropped at the beginning of text."""
        self._skipped = SPACE
        self._step = self._thinking if is_thinking else self._edge
        self._has_thought = False

    @property
    def channel(self) -> Channel:
        return "reasoning" if self._step == self._thinking else "content"

    def _end_text(self, *, cut: bool) -> None:
        if cut and self._step != self._thinking and self._is_calling:
            pass  # The text held back is white space, or part of a marker.
        elif self._step == self._edge:
            self._collector.add_text(self._take_space().lstrip(self._trimmed) + self._candidate)
        elif self._step == self._thinking:
            self._collector.add_text(
                self._take_space() + self._end_of_thought.finish(), "reasoning"
            )
        else:
            self._collector.add_text(self._take_space() + self._begin_marks.finish())
        self._candidate = ""

    @property
    def _is_calling(self) -> bool:
        """Whether only a call, or something that belongs to one, can have begun."""
        return self._is_required or (self._step == self._edge and self._collector.calls > 0)

    def _edge(self, text: str, at: int) -> int:
        """Read the beginning of the answer, or the text right after reasoning or a call: takes one
        character or changes to another state.
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
            self._add_text(space)
            self._read(candidate)
        return at + 1

    def _thinking(self, text: str, at: int) -> int:
        shown, marker, at = self._end_of_thought.find(text, at)
        if not self._has_thought:
            shown = shown.lstrip("\n")
        if shown:
            self._has_thought = True
            self._add_text(shown, "\n", "reasoning")
        if marker is not None:
            self._space.clear()
            self._go_to_edge((), "\n")
        return at

    def _in_text(self, text: str, at: int) -> int:
        shown, marker, at = self._begin_marks.find(text, at)
        self._add_text(shown)
        if marker is not None:
            is_suspect = marker not in self._style.ambiguous
            unsaid = self._take_space() + marker
            self._begin_call(self._calls[marker], unsaid, is_suspect=is_suspect)
        return at

    def _add_text(self, text: str, spaces: str = SPACE, channel: Channel = "content") -> None:
        """Emit `text` without the white space at its end, which waits for the text that follows."""
        if not self._calls and channel == "content":
            self._collector.add_text(text)
            return
        solid = text.rstrip(spaces)
        if solid:
            self._collector.add_text(self._take_space() + solid, channel)
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
