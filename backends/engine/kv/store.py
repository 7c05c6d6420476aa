"""The stores that runners offer to the KV manager: memory for keys and values, without knowledge of
which sequence needs which part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class SavedState(Protocol):
    """Keys and values in host memory, outside the store. Opaque to the engine."""

    @property
    def nbytes(self) -> int: ...


class StoredBytes(Protocol):
    """Data returned by `Store.pack`, stored elsewhere."""

    @property
    def nbytes(self) -> int: ...

    def read(self, places: Iterable[memoryview]) -> None:
        """Read all of it into `places`, one after the other: C-contiguous buffers of `nbytes` bytes
        in total. Their content is valid only if nothing is raised.
        """
        ...


class Store(Protocol):
    """The common interface of both kinds of store."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token, over all layers with full attention."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of all recurrent states."""
        ...

    @property
    def most_offloaded_bytes(self) -> int:
        """Maximum bytes of copies in host memory, if there is enough of it; 0: none are made."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """Fingerprint of the model and everything else keys and values depend on besides tokens."""
        ...

    def pack(self, state: SavedState) -> tuple[bytes, memoryview]:
        """A saved state as bytes: a short description, and its keys and values, which are not
        copied.
        """
        ...

    def unpack(self, meta: bytes, data: StoredBytes) -> SavedState | None:
        """The state that `pack` described; None if `meta` is not of this store. `data` is read here
        or when the state is restored, and errors of reading are raised there.
        """
        ...

    def available_bytes(self) -> int | None:
        """Host memory that could still be allocated; None: enough."""
        ...


@runtime_checkable
class SequenceStore(Store, Protocol):
    """Sequences by id, 0 to `sequences` - 1, in one pool of cells that they may share.

    An id is empty until `share` or `restore` fills it, or a step computes tokens for it.
    """

    @property
    def sequences(self) -> int: ...

    @property
    def keeps_past(self) -> bool:
        """See `RunnerInfo.keeps_past`."""
        ...

    @property
    def allocated_tokens(self) -> int:
        """Cells that have memory now."""
        ...

    def intact(self, sequence: int, held: int, tokens: int) -> bool:
        """Whether `sequence`, which holds `held` tokens, can be continued from exactly after its
        first `tokens` (1 to `held`).
        """
        ...

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let the empty `target` also hold the first `tokens` tokens of `source`. Requires
        `intact`; copies nothing.
        """
        ...

    def cut(self, sequence: int, tokens: int) -> bool:
        """Forget what `sequence` holds beyond its first `tokens`; False if it cannot. 0 always
        works.
        """
        ...

    def forget(self, sequence: int, start: int, count: int, *, is_own: bool) -> bool:
        """Forget the `count` tokens of `sequence` after its first `start`, and lower the positions
        of the tokens after them by `count`. Requires `keeps_past`.

        Args:
            is_own: no other id holds any of its cells. Otherwise it gets cells of its own for
                everything it keeps; returns False, and changes nothing, if there are not enough.
        """
        ...

    def make_room(self, cells: int) -> None:
        """Allocate memory for `cells` cells in total, and keep what the cells hold.

        Raises:
            Busy: there is no memory; nothing has changed.
            RunnerLost: what the pool held is lost.
        """
        ...

    def grow(self, cells: int) -> bool:
        """Whether there is memory for `cells` cells in total. If not, start to allocate it without
        blocking steps, if possible; call again between steps.
        """
        ...

    def most_offloaded_while_growing(self, cells: int) -> int:
        """Maximum bytes of copies in host memory while `make_room` allocates `cells` cells."""
        ...

    @property
    def is_growing(self) -> bool:
        """Whether memory is being allocated, so that `grow` is worth calling again."""
        ...

    def shrink(self, cells: int) -> None:
        """Called when no sequence runs and `cells` cells are in use: free unused memory, if that
        makes the difference whether what the cells hold may be offloaded.
        """
        ...

    def saved_bytes(self, sequence: int) -> int:
        """Bytes that `save` would take."""
        ...

    def save(self, sequence: int) -> SavedState | None:
        """A copy of what `sequence` holds, in host memory; None if there is not enough of it."""
        ...

    def restore(self, sequence: int, state: SavedState) -> bool:
        """Fill the empty `sequence` with a saved state; False, and still empty, if that fails."""
        ...

    def save_part(self, sequence: int, start: int, end: int) -> SavedState | None:
        """A copy of the tokens `start` to `end` of `sequence`, in host memory; None if not
        possible. Requires `keeps_past`.
        """
        ...

    def restore_part(self, sequence: int, state: SavedState, start: int, end: int) -> bool:
        """Add the tokens `start` to `end`, which `save_part` copied, to `sequence`, which holds
        exactly the `start` tokens before them; False, and unchanged, if there is no room. All
        tokens of the copy need cells for a moment.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers with the same attention window, which therefore need the same tokens."""

    window: int | None
    """A token attends to itself and the `window` - 1 tokens before it; None: to all."""
    blocks: int | None = None
    """Maximum number of blocks; None: as many as the tokens of the pool need. A group with a window
    needs far fewer.
    """


class BlockStore(Store, Protocol):
    """Keys and values in blocks of `page` tokens, numbered from 0 on in each group of layers."""

    @property
    def page(self) -> int: ...

    @property
    def groups(self) -> Seq[GroupSpec]: ...

    def capacity(self, group: int) -> int:
        """Blocks that have memory now; decreases only in `shrink`."""
        ...

    def nbytes(self, group: int) -> int:
        """Bytes of those blocks."""
        ...

    def grow(self, group: int, blocks: int) -> bool:
        """Allocate memory for at least `blocks` blocks, and keep what they hold; False if there is
        not enough. Only between steps.
        """
        ...

    def expect(self, group: int, blocks: int) -> None:
        """Called before the first step, when `blocks` blocks in total may be needed soon: allocate
        them if that is worthwhile and there is enough memory.
        """
        ...

    def shrink(self, group: int, blocks: int) -> None:
        """The blocks from `blocks` on are free: release their memory, or part of it, as the device
        allows. Only between steps.
        """
        ...

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of block `source` to block `target`; the tokens after them
        in `target` stay.
        """
        ...

    def move(self, table: Seq[int], start: int, end: int, by: int) -> None:
        """Lower the positions of the tokens `start` to `end` of a sequence, which are already in
        their blocks, by `by`. Only with a single group with full attention.

        Args:
            table: the block table of the sequence.
        """
        ...

    def rearrange(self, group: int, sources: Seq[int], targets: Seq[int]) -> None:
        """Copy tokens between cells, all at once. A cell is block * `page` + offset."""
        ...

    def save_part(self, table: Seq[int], start: int, end: int) -> SavedState | None:
        """A copy of the tokens `start` to `end` of a sequence, in host memory; None if not
        possible. Only with a single group with full attention.

        Args:
            table: the block table of the sequence.
        """
        ...

    def restore_part(self, table: Seq[int], state: SavedState, start: int, end: int) -> bool:
        """Write the tokens `start` to `end`, which `save_part` copied, into the blocks of `table`;
        False if this is not a state of this store, or there is no memory to copy it.
        """
        ...
