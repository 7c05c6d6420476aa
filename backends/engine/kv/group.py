"""Page accounting of the KV cache: held by running sequences, pinned, idle and reserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["live", "kept", "pinned"]
"""Kind of a prefix: of a running sequence, kept as long as there is room, or kept until a deadline.
"""


def most_blocks(window: int, step_tokens: int, page: int) -> int:
    """Maximum number of blocks of `page` tokens that the tokens of a step and the window before
    them touch; with `step_tokens` 0, the window before one token.
    """
    return (window + step_tokens - 2) // page + 2


@dataclass(slots=True)
class Holders:
    """How many prefixes of each kind hold a node or a block."""

    live: int = 0
    kept: int = 0
    pinned: int = 0

    def add(self, kind: Kind, count: int) -> None:
        if kind == "live":
            self.live += count
        elif kind == "kept":
            self.kept += count
        else:
            self.pinned += count

    @property
    def total(self) -> int:
        return self.live + self.kept + self.pinned

    @property
    def is_idle(self) -> bool:
        """Held only by kept prefixes, which may be evicted."""
        return self.kept > 0 and not self.live and not self.pinned

    def __add__(self, other: Holders) -> Holders:
        return Holders(self.live + other.live, self.kept + other.kept, self.pinned + other.pinned)


class Group:
    """The pages of layers with the same attention window.

    A page is held by running sequences, or pinned, or idle (kept until room is needed). In
    addition, each running sequence has a claim, in pages:

    - without a window, the pages it lacks to reach its reservation. A page that several sequences
      share counts once, since all of them keep it as long as they run.
    - with a window, all pages that it can need at one time. Sharing does not reduce the claim,
      because each sequence leaves shared pages behind at a different time and takes others.

    Args:
        window: a token attends to itself and the `window` - 1 tokens before it; None: to all.
        page: tokens per page.
        limit: maximum number of pages in use, as planned.
        step_tokens: maximum tokens that a sequence computes in one step; None: any number.
    """

    def __init__(
        self, number: int, window: int | None, *, page: int, limit: int, step_tokens: int | None
    ) -> None:
        self.number = number
        self.window = window
        self.page = page
        self.limit = self.planned = limit
        self.claims = 0
        """Total claims of all running sequences."""
        self.spare = 0
        """Pages that running sequences have taken but not filled yet."""
        self.held = 0
        """Other pages of running sequences."""
        self.only_pinned = 0
        """Pinned pages that no running sequence holds."""
        self.idle = 0
        self.pinned = 0
        """Pinned pages, whether or not other prefixes hold them."""
        self.held_tokens = 0
        self.other_tokens = 0
        """Tokens in pages that no running sequence holds."""
        self._most = None
        if window is not None and step_tokens is not None:
            self._most = most_blocks(window, step_tokens, page)

    @property
    def used(self) -> int:
        """Pages in use."""
        return self.spare + self.held + self.only_pinned + self.idle

    def count(self, holders: Holders, pages: int, tokens: int) -> None:
        """Add `pages` with `tokens` held by `holders` to the counts; negative numbers undo that."""
        if holders.pinned:
            self.pinned += pages
        if holders.live:
            self.held += pages
            self.held_tokens += tokens
        elif holders.pinned:
            self.only_pinned += pages
            self.other_tokens += tokens
        elif holders.kept:
            self.idle += pages
            self.other_tokens += tokens

    def first_needed(self, length: int) -> int:
        """The first page that the token after `length` others attends to."""
        if self.window is None:
            return 0
        return max(0, length - self.window + 1) // self.page

    def claim(self, pages: int, table: int, first: int) -> int:
        """Claim of a sequence that may grow to `pages` pages and has `table` of them, where the
        window has passed those before `first`.
        """
        if self.window is None:
            return max(0, pages - table)
        needed = pages - first if self._most is None else min(pages - first, self._most)
        return max(needed, table - first)

    def free(self, *, pins_stay: bool) -> int:
        """Pages that one more sequence could claim; negative if too many are held or claimed."""
        if self.window is None:
            pins = self.only_pinned if pins_stay else 0
            return self.limit - self.spare - self.held - self.claims - pins
        return self.limit - self.claims - (self.pinned if pins_stay else 0)

    def free_tokens(self, *, pins_stay: bool) -> int | None:
        """Tokens that could be reserved for one more sequence; None: any number."""
        pages = self.free(pins_stay=pins_stay)
        if self._most is not None and pages >= self._most:
            return None
        return max(0, pages) * self.page

    @property
    def excess(self) -> int:
        """How many idle pages must be evicted for the reservations; negative: there is room."""
        return self.idle - self.free(pins_stay=True)
