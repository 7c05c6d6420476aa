"""What the paged memory asks of whoever has the pages: tensors, or lists in a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers that see equally far, and so need the same tokens."""

    window: int | None
    """A token sees itself and the `window` - 1 before it; None: all."""
    blocks: int | None = None
    """Most blocks; None: as many as the tokens of the pool need. A group with a window needs far
    fewer.
    """


class PageStore(Protocol):
    """Pages of keys and values: in each group blocks from 0 on, of as many tokens as a page has."""

    def capacity(self, group: int) -> int:
        """Blocks that there is memory for now; fewer than before only after `shrink`."""
        ...

    def nbytes(self, group: int) -> int:
        """What they take of memory."""
        ...

    def grow(self, group: int, blocks: int) -> bool:
        """Have memory for at least so many blocks, and keep what is in them; False: there is none.
        Only between steps.
        """
        ...

    def shrink(self, group: int, blocks: int) -> None:
        """The blocks from `blocks` on are free: have no memory for them, or for fewer of them, as
        the device allows. Only between steps.
        """
        ...

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Give block `target` the first `tokens` tokens of block `source`."""
        ...
