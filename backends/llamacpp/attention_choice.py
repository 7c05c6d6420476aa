"""Which of llama.cpp's two kinds of attention the steps of a processor should have now.

Without flash attention every row of a step pays for all cells of the pool, a little each. Flash
attention passes over the cells of others, and pays several times as much for a row's own. So the
one is faster for a single long conversation, and the other for many short ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from hearth.backends.engine.runner import Row
from hearth.backends.llamacpp.model import ModelFacts
from hearth.backends.llamacpp.params import CELL_ALIGNMENT, FLASH_TILE, UBATCH, ContextPlan

WORTH_MOVES: Final = 4.0
"""Change when that would have saved this many times what it costs."""
MOVE_BYTES_S: Final = 0.5e9
"""Bytes of keys and values that are moved in a second: copied out, transposed, copied in."""
MOVE_S: Final = 0.1
"""And what a new context takes."""


CLEARLY_FASTER: Final = 0.8
"""Without flash attention a step must take at most this share of the time with it to be chosen for
anything."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of one layer's decode step behind `depth` tokens."""

    flash_s: float
    plain_s: float
    depth: int = 2048

    @property
    def flash_pays(self) -> bool:
        """Always: for a single long conversation too."""
        return self.plain_s > CLEARLY_FASTER * self.flash_s


class AttentionChoice:
    """Adds up what the other kind would have saved.

    Args:
        flash: which kind it begins with.
        flash_factor: what flash attention takes for a cell, by what the other does.
        cell_s: seconds that the other takes for a cell and a row, in all layers.
        cell_bytes: keys and values of a cell.
    """

    def __init__(self, *, flash: bool, flash_factor: float, cell_s: float, cell_bytes: int) -> None:
        self.flash = flash
        self._factor = flash_factor
        self._cell_s = cell_s
        self._cell_bytes = cell_bytes
        self._lost_s = 0.0

    def note(self, rows: Iterable[Row], cells: int) -> None:
        """A step computed `rows`, with `cells` of the pool in use."""
        tokens = own = 0
        for row in rows:
            count = len(row.tokens)
            tokens += count
            own += count * (row.start + (count + 1) // 2)
        plain = tokens * -(-cells // CELL_ALIGNMENT) * CELL_ALIGNMENT
        flash = own * (self._factor if tokens < FLASH_TILE else 1.0)
        saved = (flash - plain) if self.flash else (plain - flash)
        self._lost_s = max(0.0, self._lost_s + saved * self._cell_s)

    def should_change(self, cells: int) -> bool:
        """Whether to move the `cells` in use over to the other kind."""
        move_s = MOVE_S + cells * self._cell_bytes / MOVE_BYTES_S
        return self._lost_s > WORTH_MOVES * move_s

    def changed(self) -> None:
        """It has the other kind now."""
        self.flash = not self.flash
        self._lost_s = 0.0

    def give_up(self) -> None:
        """It could not be changed: wait as long again."""
        self._lost_s = 0.0


def choice_of(
    attention: Attention | None, plan: ContextPlan, facts: ModelFacts
) -> AttentionChoice | None:
    """Begins with flash attention; None where there is nothing to choose: costs are not known, or
    the memory is not one of full attention, whose values can be transposed.
    """
    if attention is None or not facts.can_roll_back or facts.sliding_window:
        return None
    return AttentionChoice(
        flash=True,
        flash_factor=attention.flash_s / attention.plain_s,
        cell_s=facts.layers * attention.plain_s / attention.depth,
        cell_bytes=plan.kv_bytes_per_token,
    )


def with_flash(plan: ContextPlan) -> ContextPlan:
    """`plan`, which is for attention without flash, with it: graphs may hold more rows then."""
    return replace(plan, flash_attention=1, ubatch=min(plan.batch, UBATCH))
