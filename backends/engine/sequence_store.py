"""What `SequenceCache` asks of a library whose memory names whole sequences by id, as llama.cpp's
does.
"""

from __future__ import annotations

from typing import Protocol

from hearth.backends.engine.runner import SavedState


class SequenceStore(Protocol):
    """Sequences by id, 0 to `sequences` - 1, in one pool of cells that they may share.

    An id is empty until `share` or `restore`, or until a step computes tokens for it.
    """

    @property
    def sequences(self) -> int: ...

    @property
    def keeps_past(self) -> bool:
        """See `RunnerInfo.keeps_past`."""
        ...

    @property
    def allocated_tokens(self) -> int:
        """Cells that there is memory for now."""
        ...

    @property
    def token_bytes(self) -> int:
        """Of one token in the pool."""
        ...

    @property
    def state_bytes(self) -> int:
        """What recurrent states take, of all ids."""
        ...

    @property
    def most_offloaded_bytes(self) -> int:
        """What copies outside the pool may take now, were there enough memory."""
        ...

    def intact(self, sequence: int, held: int, tokens: int) -> bool:
        """Whether `sequence`, which holds `held` tokens, can be gone on from exactly after its
        first `tokens` (1 to `held`).
        """
        ...

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let the empty `target` hold the first `tokens` tokens of `source` too. Only where
        `intact`; copies nothing.
        """
        ...

    def cut(self, sequence: int, tokens: int) -> bool:
        """Forget what `sequence` holds beyond its first `tokens`; False if it cannot. 0 always
        works.
        """
        ...

    def shrink(self, cells: int) -> None:
        """Nobody runs, and `cells` cells are in use: have memory for fewer, where that makes the
        difference to whether what they hold may be offloaded.
        """
        ...

    def save(self, sequence: int) -> SavedState | None:
        """A copy of what `sequence` holds, in plain memory; None if there is none to spare."""
        ...

    def restore(self, sequence: int, state: SavedState) -> bool:
        """Give the empty `sequence` what was saved; False, and still empty, if that fails."""
        ...

    def save_part(self, sequence: int, start: int, end: int) -> SavedState | None:
        """A copy of the tokens `start` to `end` of `sequence`, in plain memory; None if that cannot
        be had. Only where the memory keeps its past.
        """
        ...

    def restore_part(self, sequence: int, state: SavedState, start: int, end: int) -> bool:
        """Add the tokens `start` to `end`, which `save_part` copied, to `sequence`, which holds
        just the `start` tokens before them in their history; False, and unchanged, if there is no
        room. For a moment all tokens of the copy need cells.
        """
        ...
