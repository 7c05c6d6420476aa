"""The KV cache of a model as a bar of blocks."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from hearth.app.format import size
from hearth.backends.contract import EngineStats

_PARTS: Final = (("used", "█", "$primary"), ("cached", "█", "$secondary"), ("free", "░", "dim"))
_UNALLOCATED: Final = ("▁", "dim")


class KvMap(Vertical):
    """Tokens used, cached and free of those that are allocated, then those that may still be."""

    DEFAULT_CSS = """
    KvMap { height: auto; padding: 0 1; }
    KvMap > #kv-title { height: 1; text-style: bold; }
    KvMap > #kv-bar { height: 1; }
    KvMap > #kv-legend { height: auto; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._engine: EngineStats | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("", id="kv-title", markup=False)
        yield Static(id="kv-bar", markup=False)
        yield Static(id="kv-legend", markup=False)

    def show(self, name: str, engine: EngineStats | None) -> None:
        """Show the cache of the model called `name`; None: it is not known, or there is none."""
        self.display = engine is not None
        self._engine = engine
        if engine is not None:
            self.query_one("#kv-title", Static).update(Content(f"KV cache of {name}"))
            self.query_one("#kv-legend", Static).update(legend(engine))
            self._draw()

    def on_resize(self) -> None:
        """Draw the bar at the new width."""
        self._draw()

    def _draw(self) -> None:
        if self._engine is not None:
            self.query_one("#kv-bar", Static).update(bar(self._engine, self.content_size.width))


def bar(engine: EngineStats, width: int) -> Content:
    """The cache in `width` blocks; each part that is not empty has at least one."""
    counts = _counts(engine)
    total = max(1, sum(counts))
    blocks = [-(-count * width // total) for count in counts]
    while sum(blocks) > width:  # Rounded up, so the widest have one too many.
        blocks[blocks.index(max(blocks))] -= 1
    marks = (*((mark, color) for _, mark, color in _PARTS), _UNALLOCATED)
    return Content.assemble(
        *(
            (mark * count, color)
            for count, (mark, color) in zip(blocks, marks, strict=True)
            if count
        )
    )


def legend(engine: EngineStats) -> Content:
    """The same in numbers."""
    used, kept, free, _ = _counts(engine)
    parts: list[Content | tuple[str, str] | str] = []
    for (name, mark, color), count in zip(_PARTS, (used, kept, free), strict=True):
        parts += [(mark, color), f" {name} {count:,}  "]
    if engine.shelved_tokens:
        parts.append(f"offloaded {engine.shelved_tokens:,}  ")
    held, budget = size(engine.allocated_bytes), size(engine.pool_bytes)
    parts.append(f"of {engine.pool_tokens:,} tokens · {held} of {budget}")
    return Content.assemble(*parts)


def _counts(engine: EngineStats) -> tuple[int, int, int, int]:
    """Tokens used, cached, free, and not allocated yet."""
    used, kept = engine.live_tokens, engine.kept_tokens
    free = max(0, engine.allocated_tokens - used - kept)
    return used, kept, free, max(0, engine.pool_tokens - used - kept - free)
