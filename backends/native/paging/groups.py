"""How far the layers of a group see, and how many of its blocks are spoken for."""

from __future__ import annotations

from hearth.backends.native.paging.block_pool import BlockPool
from hearth.backends.native.paging.store import GroupSpec


def most_blocks(window: int, step_tokens: int, page: int) -> int:
    """Blocks of `page` tokens that the tokens of a step and the window before them touch at most;
    with a step of none, the window before a token.
    """
    return (window + step_tokens - 2) // page + 2


class Group:
    """The blocks of layers that see equally far, and what running sequences may still take.

    What a sequence may take beside its blocks is its claim, in blocks:

    - without a window, what it lacks to what it was promised. A block that several share counts
      once, since all of them keep it as long as they run.
    - with a window, all that it can need at one time. Sharing counts for nothing here: each leaves
      shared blocks behind at its own time, and takes others.

    Args:
        limit: most blocks in use.
        capacity: blocks that there is memory for.
        step_tokens: most tokens that a sequence computes in one step; None: any number.
    """

    def __init__(
        self,
        number: int,
        spec: GroupSpec,
        *,
        page: int,
        limit: int,
        capacity: int,
        step_tokens: int | None,
    ) -> None:
        self.number = number
        self.window = spec.window
        self.pool = BlockPool(limit, capacity)
        self.claims = 0
        """Of all sequences together."""
        self._page = page
        self._most = None
        if spec.window is not None and step_tokens is not None:
            self._most = most_blocks(spec.window, step_tokens, page)

    def first_needed(self, length: int) -> int:
        """The first block that the token after `length` others looks at."""
        if self.window is None:
            return 0
        return max(0, length - self.window + 1) // self._page

    def claim(self, blocks: int, table: int, first: int) -> int:
        """Of a sequence that may grow to `blocks` blocks and has a table of `table`, of which those
        before `first` are left behind.
        """
        if self.window is None:
            return max(0, blocks - table)
        needed = blocks - first if self._most is None else min(blocks - first, self._most)
        return max(needed, table - first)

    def free(self, *, pins_stay: bool) -> int:
        """Blocks that one more sequence could claim; negative where too many are spoken for."""
        pool = self.pool
        if self.window is None:
            return pool.limit - pool.held - self.claims - (pool.only_pinned if pins_stay else 0)
        return pool.limit - self.claims - (pool.pinned if pins_stay else 0)

    def free_tokens(self, *, pins_stay: bool) -> int | None:
        """Tokens that one more sequence could be promised; None: any number."""
        blocks = self.free(pins_stay=pins_stay)
        if self._most is not None and blocks >= self._most:
            return None
        return max(0, blocks) * self._page

    @property
    def excess(self) -> int:
        """How many idle blocks are in the way of what was promised; negative: there is room."""
        return self.pool.idle - self.free(pins_stay=True)
