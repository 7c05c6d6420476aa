"""What a runner offers the KV manager: memory for keys and values, and nothing that knows who needs
which of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class SavedState(Protocol):
    """Keys and values in plain memory, outside the store. Opaque to the engine."""

    @property
    def nbytes(self) -> int: ...


class StoredBytes(Protocol):
    """What `Store.pack` gave, kept elsewhere."""

    @property
    def nbytes(self) -> int: ...

    def read(self, places: Iterable[memoryview]) -> None:
        """Read all of it into `places`, one after the other: C-contiguous buffers that have
        `nbytes` bytes together. What they have is of use only if nothing is raised.
        """
        ...


class Store(Protocol):
    """What both kinds of store tell."""

    @property
    def token_bytes(self) -> int:
        """Of one token, in all layers that see everything."""
        ...

    @property
    def state_bytes(self) -> int:
        """What recurrent states take, all together."""
        ...

    @property
    def most_offloaded_bytes(self) -> int:
        """What copies in plain memory may take, were there enough of it; 0: none are made."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """Of the model, and of all else that keys and values depend on besides tokens."""
        ...

    def pack(self, state: SavedState) -> tuple[bytes, memoryview]:
        """What was saved, as bytes: a few that say what it is, and its keys and values, which are
        not copied.
        """
        ...

    def unpack(self, meta: bytes, data: StoredBytes) -> SavedState | None:
        """The state that `pack` gave; None if this is none. `data` are read here, or when the state
        is restored, and what reading them raises is raised there.
        """
        ...

    def available_bytes(self) -> int | None:
        """Plain memory that could still be taken; None: enough."""
        ...


@runtime_checkable
class SequenceStore(Store, Protocol):
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
        """Whether `sequence`, which holds `held` tokens, can be continued from exactly after its
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

    def forget(self, sequence: int, start: int, count: int, *, is_own: bool) -> bool:
        """Forget the `count` tokens of `sequence` after its first `start`, and let the positions of
        those after them be lower by `count`. Only where the memory keeps its past.

        Args:
            is_own: no other id has any of its cells. Else it gets cells of its own for all that it
                keeps: False, and unchanged, where they cannot be had.
        """
        ...

    def make_room(self, cells: int) -> None:
        """Have memory for `cells` cells in all, and keep what is in them.

        Raises:
            Busy: there is none; nothing has changed.
            RunnerLost: what the pool held is lost.
        """
        ...

    def grow(self, cells: int) -> bool:
        """Whether there is memory for `cells` cells in all. If not, begin to make some without
        holding up steps, where that can be done; to be asked again between steps.
        """
        ...

    def most_offloaded_while_growing(self, cells: int) -> int:
        """What copies in plain memory may take while `make_room` makes memory for `cells` cells."""
        ...

    @property
    def is_growing(self) -> bool:
        """Whether more memory is being made, so that `grow` is worth asking again."""
        ...

    def shrink(self, cells: int) -> None:
        """No sequence runs, and `cells` cells are in use: have memory for fewer, where that decides
        whether what they hold may be offloaded.
        """
        ...

    def saved_bytes(self, sequence: int) -> int:
        """What `save` would take."""
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
        just the `start` tokens before them; False, and unchanged, if there is no room. For a moment
        all tokens of the copy need cells.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers that see equally far, and so need the same tokens."""

    window: int | None
    """A token sees itself and the `window` - 1 before it; None: all."""
    blocks: int | None = None
    """Most blocks; None: as many as the tokens of the pool need. A group with a window needs far
    fewer.
    """


class BlockStore(Store, Protocol):
    """Keys and values in blocks of `page` tokens, numbered from 0 on in each group of layers."""

    @property
    def page(self) -> int: ...

    @property
    def groups(self) -> Seq[GroupSpec]: ...

    def capacity(self, group: int) -> int:
        """Blocks that there is memory for now; fewer than before only after `shrink`."""
        ...

    def nbytes(self, group: int) -> int:
        """What they take of memory."""
        ...

    def grow(self, group: int, blocks: int) -> bool:
        """Have memory for at least `blocks` blocks, and keep what is in them; False: there is none.
        Only between steps.
        """
        ...

    def expect(self, group: int, blocks: int) -> None:
        """No step was made yet, and `blocks` blocks in all may be needed soon: have memory for them
        where that is worth it and there is enough.
        """
        ...

    def shrink(self, group: int, blocks: int) -> None:
        """The blocks from `blocks` on are free: have no memory for them, or for fewer of them, as
        the device allows. Only between steps.
        """
        ...

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Give block `target` the first `tokens` tokens of block `source`; what comes after them in
        `target` stays.
        """
        ...

    def move(self, table: Seq[int], start: int, end: int, by: int) -> None:
        """The positions of the tokens `start` to `end` of a sequence, which are in their blocks
        already, are lower by `by` than when they were computed. Only with one group, which sees
        everything.

        Args:
            table: its blocks.
        """
        ...

    def rearrange(self, group: int, sources: Seq[int], targets: Seq[int]) -> None:
        """Copy tokens, all at once: from and to cells, which are block times `page` plus place."""
        ...

    def save_part(self, table: Seq[int], start: int, end: int) -> SavedState | None:
        """A copy of the tokens `start` to `end` of a sequence, in plain memory; None if that cannot
        be had. Only with one group, which sees everything.

        Args:
            table: its blocks.
        """
        ...

    def restore_part(self, table: Seq[int], state: SavedState, start: int, end: int) -> bool:
        """Write the tokens `start` to `end`, which `save_part` copied, into the blocks of `table`;
        False if this is not a state of this store, or there is no memory to copy it.
        """
        ...
