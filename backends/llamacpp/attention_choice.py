"""Chooses between llama.cpp's two kinds of attention for steps on a processor.

Without flash attention, every row of a step pays a little for each cell of the pool. Flash
attention skips the cells of other sequences, but pays several times as much for each of a row's
own. So attention without flash is faster for a single long conversation, and flash attention for
many short ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from hearth.backends.engine.runner import Row
from hearth.backends.llamacpp.model import ModelFacts
from hearth.backends.llamacpp.params import CELL_ALIGNMENT, FLASH_TILE, UBATCH, ContextPlan

WORTH_MOVES: Final = 4.0
"""Switch once the other kind would have saved this many times the cost of the switch."""
MOVE_BYTES_S: Final = 0.5e9
"""Bytes of keys and values moved per second: copied out, transposed, copied in."""
MOVE_S: Final = 0.1
"""Seconds to make a new context."""


CLEARLY_FASTER: Final = 0.8
"""Attention without flash is considered only if it takes at most this share of the time of flash
attention."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of one layer's decode step after `depth` tokens."""

    flash_s: float
    plain_s: float
    depth: int = 2048

    @property
    def flash_pays(self) -> bool:
        """Whether flash attention is always the better choice, even for one long conversation."""
        return self.plain_s > CLEARLY_FASTER * self.flash_s


class AttentionChoice:
    """Adds up the time that the other kind of attention would have saved.

    Args:
        flash: begin with flash attention.
        flash_factor: time per cell with flash attention, divided by the time without.
        cell_s: seconds per cell and row in all layers without flash attention.
        cell_bytes: bytes of keys and values of a cell.
    """

    def __init__(self, *, flash: bool, flash_factor: float, cell_s: float, cell_bytes: int) -> None:
        self.flash = flash
        self._factor = flash_factor
        self._cell_s = cell_s
        self._cell_bytes = cell_bytes
        self._lost_s = 0.0

    def note(self, rows: Iterable[Row], cells: int) -> None:
        """Account for a step that computed `rows`, with `cells` of the pool in use."""
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
        """Whether to move the `cells` in use to the other kind of attention."""
        move_s = MOVE_S + cells * self._cell_bytes / MOVE_BYTES_S
        return self._lost_s > WORTH_MOVES * move_s

    def changed(self) -> None:
        """The kind of attention was switched."""
        self.flash = not self.flash
        self._lost_s = 0.0

    def give_up(self) -> None:
        """The switch failed: start counting from zero."""
        self._lost_s = 0.0


def choice_of(
    attention: Attention | None, plan: ContextPlan, facts: ModelFacts
) -> AttentionChoice | None:
    """A choice that begins with flash attention, or None if there is nothing to choose.

    That is, if costs are unknown, or if the memory is not one of full attention, because only its
    values can be transposed.
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
    """`plan`, made for attention without flash, with flash attention and larger graphs."""
    return replace(plan, flash_attention=1, ubatch=min(plan.batch, UBATCH))
