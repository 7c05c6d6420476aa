"""What the engine screen shows of a worker: its KV cache, drafts, speed, and log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import RichLog, Static

from hearth.app.format import right_by_position, size
from hearth.app.log_file import MOST_LINES
from hearth.app.terminal import safe_text
from hearth.backends.contract.loaded import EngineStats

_BARS: Final = "▁▂▃▄▅▆▇█"
_PARTS: Final = (("used", "█", "$primary"), ("cached", "█", "$secondary"), ("free", "░", "dim"))
_UNALLOCATED: Final = ("▁", "dim")


class KvMap(Vertical):
    """A bar of the KV cache: allocated tokens (used, cached, free), then unallocated ones."""

    DEFAULT_CSS = """
    KvMap { height: auto; padding: 0 1; }
    KvMap > #kv-title { height: 1; text-style: bold; }
    KvMap > #kv-bar { height: 1; }
    KvMap > #kv-legend, KvMap > #drafts { height: auto; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._engine: EngineStats | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("", id="kv-title", markup=False)
        yield Static(id="kv-bar", markup=False)
        yield Static(id="kv-legend", markup=False)
        yield Static(id="drafts", markup=False)

    def show(self, name: str, engine: EngineStats | None) -> None:
        """Show the cache of the model `name`; if `engine` is None (unknown or absent), hide it."""
        self.display = engine is not None
        self._engine = engine
        if engine is not None:
            self.query_one("#kv-title", Static).update(Content(f"KV cache of {name}"))
            self.query_one("#kv-legend", Static).update(kv_legend(engine))
            drafts = drafts_line(engine)
            self.query_one("#drafts", Static).update(drafts)
            self.query_one("#drafts").display = bool(drafts)
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._engine is not None:
            self.query_one("#kv-bar", Static).update(kv_bar(self._engine, self.content_size.width))


def kv_bar(engine: EngineStats, width: int) -> Content:
    """The cache in `width` blocks; each part that is not empty has at least one."""
    counts = _counts(engine)
    total = max(1, sum(counts))
    blocks = [-(-count * width // total) for count in counts]
    while sum(blocks) > width:  # Rounded up, so the sum may exceed the width.
        blocks[blocks.index(max(blocks))] -= 1
    marks = (*((mark, color) for _, mark, color in _PARTS), _UNALLOCATED)
    return Content.assemble(
        *(
            (mark * count, color)
            for count, (mark, color) in zip(blocks, marks, strict=True)
            if count
        )
    )


def kv_legend(engine: EngineStats) -> Content:
    """The parts of the cache in numbers."""
    used, kept, free, _ = _counts(engine)
    parts: list[Content | tuple[str, str] | str] = []
    for (name, mark, color), count in zip(_PARTS, (used, kept, free), strict=True):
        parts += [(mark, color), f" {name} {count:,}  "]
    if engine.offloaded_tokens:
        parts.append(f"offloaded {engine.offloaded_tokens:,}  ")
    if engine.disk_tokens:
        read = f", read {engine.disk_read_tokens:,}" if engine.disk_read_tokens else ""
        if engine.disk_written_bytes:
            read += f", written {size(engine.disk_written_bytes)}"
        parts.append(f"on disk {engine.disk_tokens:,} ({size(engine.disk_bytes)}{read})  ")
    held, budget = size(engine.allocated_bytes), size(engine.pool_bytes)
    parts.append(f"of {engine.pool_tokens:,} tokens · {held} of {budget}")
    return Content.assemble(*parts)


def drafts_line(engine: EngineStats) -> str:
    """The results of speculation; empty until the first draft was made or declined."""
    names = {"ngram": "n-grams", "chats": "other chats", "draft": "draft model"}
    parts = [
        f"{names.get(name, name)} {accepted:,} of {drafted:,} right"
        for name, (drafted, accepted) in sorted(engine.drafts_by.items())
    ]
    if parts:
        places = right_by_position(engine.drafted_tokens, engine.accepted_tokens)
        parts = [", ".join(parts), f"by position {places}"]
        parts.append(f"{engine.tokens_a_step:.2f} tokens a step")
    if engine.declined_drafts:
        parts.append(f"{engine.declined_drafts:,} not used, as they would not pay")
    return f"drafts: {' · '.join(parts)}" if parts else ""


def _counts(engine: EngineStats) -> tuple[int, int, int, int]:
    """Tokens used, cached, free, and not allocated yet."""
    used, kept = engine.live_tokens, engine.kept_tokens
    free = max(0, engine.allocated_tokens - used - kept)
    return used, kept, free, max(0, engine.pool_tokens - used - kept - free)


class SparklineRow(Horizontal):
    """A title, the current value, a sparkline of the last minute, and its peak."""

    DEFAULT_CSS = """
    SparklineRow { height: 1; padding: 0 1; }
    SparklineRow > .sparkline-row--title { width: auto; text-style: bold; padding: 0 2 0 0; }
    SparklineRow > .sparkline-row--now { width: 9; text-align: right; padding: 0 2 0 0; }
    SparklineRow > .sparkline-row--bars { width: 1fr; color: $primary; }
    SparklineRow > .sparkline-row--peak {
        width: auto; color: $text-muted; padding: 0 0 0 2; text-align: right;
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._bars = _Bars(classes="sparkline-row--bars")

    def compose(self) -> ComposeResult:
        yield Static(self._title, classes="sparkline-row--title", markup=False)
        yield Static("", classes="sparkline-row--now", markup=False)
        yield self._bars
        yield Static("", classes="sparkline-row--peak", markup=False)

    def show(self, now: float, course: Sequence[float]) -> None:
        """Show the value `now`, and its `course`, oldest first."""
        peak = max(course, default=0.0)
        self._bars.course = course
        self._bars.refresh()
        self.query_one(".sparkline-row--now", Static).update(f"{now:,.1f}")
        self.query_one(".sparkline-row--peak", Static).update(
            f"peak {peak:,.0f} in the last minute"
        )


class _Bars(Widget):
    """Draws `course`, oldest first, in all of its width."""

    course: Sequence[float] = ()

    def render(self) -> Content:
        return Content(sparkline(self.course, self.content_size.width))


def sparkline(course: Sequence[float], width: int) -> str:
    """`course` in `width` cells, each from zero to the highest value; a space for zero."""
    peak = max(course, default=0.0)
    if not peak or not width:
        return ""
    shown = []
    for cell in range(width):
        begin = cell * len(course) // width
        value = max(course[begin : max((cell + 1) * len(course) // width, begin + 1)])
        shown.append(_BARS[round(value / peak * (len(_BARS) - 1))] if value else " ")
    return "".join(shown)


class LogTail(Vertical):
    """A title and wrapped lines; while the user has scrolled up, the position stays."""

    DEFAULT_CSS = """
    LogTail { height: 1fr; min-height: 3; padding: 0 1; }
    LogTail > .log-tail--title { height: 1; text-style: bold; }
    LogTail > RichLog {
        height: 1fr; background: transparent; color: $text-muted; scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0; scrollbar-gutter: stable;
    }
    LogTail > RichLog:focus { background-tint: $foreground 3%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] | None = None
        self._width = 0
        self._follows = True

    def compose(self) -> ComposeResult:
        yield Static("", classes="log-tail--title", markup=False)
        yield RichLog(max_lines=MOST_LINES, markup=False, highlight=False, wrap=True, min_width=1)

    def on_mount(self) -> None:
        """Note whether the end is in view after each scroll."""
        self.watch(self.query_one(RichLog), "scroll_y", self._note_end, init=False)

    def _note_end(self) -> None:
        self._follows = self.query_one(RichLog).is_vertical_scroll_end

    def on_resize(self) -> None:
        """Wrap the lines again, once the log has its size."""
        if self._lines is not None:
            self.call_after_refresh(self._show, self._lines)

    def show(self, title: str, lines: Sequence[str]) -> None:
        """Show these lines of the log called `title`."""
        self.query_one(".log-tail--title", Static).update(title)
        self._show(lines)

    def _show(self, lines: Sequence[str]) -> None:
        log = self.query_one(RichLog)
        follows, at = self._follows, log.scroll_y
        if log.size.width and (self._lines != list(lines) or self._width != log.size.width):
            log.clear()
            for line in lines or ["The log is empty."]:
                text = Text(safe_text(line).expandtabs(4))
                log.write(text, width=log.scrollable_content_region.width, scroll_end=False)
            self._lines, self._width = list(lines), log.size.width
            if not follows:
                log.scroll_to(y=at, animate=False, immediate=True)
        if follows:
            log.scroll_end(animate=False, immediate=True)
        self._follows = follows
