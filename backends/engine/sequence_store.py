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

    def save(self, sequence: int) -> SavedState | None:
        """A copy of what `sequence` holds, in plain memory; None if there is none to spare."""
        ...

    def restore(self, sequence: int, state: SavedState) -> bool:
        """Give the empty `sequence` what was saved; False, and still empty, if that fails."""
        ...
