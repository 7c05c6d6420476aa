"""What is written to disk of sequences that run and of those that ended, a part between two steps
at a time, and what is read again.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.kept import KeptPrefixes
from hearth.backends.engine.kv.leaves import Leaves
from hearth.backends.engine.kv.offload import MOST_WHOLE_BYTES, DiskFetch, Offloading
from hearth.backends.engine.kv.tree import Prefix


class WriteBehind:
    """Copies to the disk tier, within the time that `Offloading` has between steps.

    Of a sequence that runs full parts are written, of one that ended the rest. What the disk has of
    the same session is never written again, so that each part begins where the last one ended.
    Memories that cannot be continued from any first part are written as a whole, where a sequence
    ended and where its prompt did.

    Args:
        part_tokens: most tokens of a part.
        worth_moving: tokens that reading must save from being computed.
    """

    def __init__(
        self,
        disk: DiskTier,
        leaves: Leaves,
        offloading: Offloading,
        *,
        part_tokens: int,
        worth_moving: int,
    ) -> None:
        self.disk = disk
        self._leaves = leaves
        self._offloading = offloading
        self._part_tokens = part_tokens
        self._worth_moving = worth_moving
        self._sessions: dict[int, str] = {}
        """Of the slots whose tokens are written."""
        self._written: dict[int, int] = {}
        """By slot: how many of its first tokens need not be looked at again."""
        self._ended: dict[tuple[Prefix, str], int] = {}
        """Kept prefixes with their sessions: how many of its first tokens are the session's own,
        and are not all written yet.
        """

    def begin(self, slot: int, session: str | None) -> None:
        """A sequence of `session` begins in `slot`; None: nothing of it is written."""
        self._sessions.pop(slot, None)
        if session is not None:
            self._sessions[slot] = session
            self._written[slot] = 0
            self.disk.begin(session)

    def end(self, slot: int, prefix: Prefix) -> None:
        """It ended, and what it held may soon be shorter: write what there is time for."""
        if (session := self._sessions.get(slot)) is not None:
            self._write(prefix, session, prefix.length)

    def keep(self, slot: int, kept: Prefix | None, held: int = 0) -> None:
        """The `held` tokens that it had are the first of `kept`, and the rest of them is written
        later; None: they are gone.
        """
        session = self._sessions.pop(slot, None)
        if session is not None and kept is not None:
            self._ended[kept, session] = max(held, self._ended.get((kept, session), 0))

    def checkpoint(self, slot: int, kept: Prefix) -> None:
        """The first tokens of `slot` are kept, as it cannot go back to them."""
        if slot in self._sessions and not self._leaves.keeps_past:
            self._ended[kept, self._sessions[slot]] = kept.length

    @property
    def is_wanted(self) -> bool:
        """Something of sequences that ended can be written now."""
        return bool(self._ended) and self.disk.has_room

    def work(self, slots: Seq[Prefix | None], kept: KeptPrefixes) -> None:
        """Copy what is not written, while there is time and the disk keeps up."""
        if self._leaves.keeps_past:
            for slot, session in self._sessions.items():
                prefix = slots[slot]
                if prefix and prefix.length - self._written[slot] >= self._part_tokens:
                    written = self._write(prefix, session, prefix.length, only_full_parts=True)
                    self._written[slot] = written
        for (prefix, session), held in list(self._ended.items()):
            end = min(held, prefix.length) if prefix in kept else 0
            if not end or self._write(prefix, session, end) >= end:
                del self._ended[prefix, session]

    def fetch(
        self, tokens: Seq[int], namespace: bytes, held: int, reached: int
    ) -> DiskFetch | None:
        """What should be read for a slot that has the first `held` of `tokens`; None: nothing that
        saves enough tokens.

        Args:
            reached: so many can be had without the disk.
        """
        only_whole = not self._leaves.keeps_past
        path = self.disk.find(tokens, namespace, only_whole=only_whole)
        if not path or path[-1][1] - reached < self._worth_moving:
            return None
        starts = [part.start for part, _ in path[1:]]
        ends = [*starts, path[-1][1]]  # The next part may begin before the end of one.
        first = next(at for at, end in enumerate(ends) if end > held)
        parts = [part for part, _ in path[first:]]
        wanted = list(tokens[: ends[-1]])
        return DiskFetch(self.disk.load(parts), ends[first:], wanted, held, self.disk.damaged)

    def clear(self) -> None:
        """Delete all that is on disk of this model, and write nothing of what was computed."""
        self._ended.clear()
        self.disk.clear()

    def _write(
        self, prefix: Prefix, session: str, held: int, *, only_full_parts: bool = False
    ) -> int:
        """Write the first `held` tokens. Returns up to which token nothing more need be written, or
        cannot be.
        """
        if not (self.disk.has_room and self._offloading.has_time):
            return 0
        tokens = self._leaves.tree.tokens(prefix)[:held]
        is_whole = not self._leaves.keeps_past
        if is_whole and held < prefix.length:
            return held
        parent, start = self.disk.place(session, tokens, prefix.namespace, only_whole=is_whole)
        if is_whole:
            if start < len(tokens) and self._leaves.saved_bytes(prefix) <= MOST_WHOLE_BYTES:
                self._write_part(prefix, session, parent, 0, None, tokens)
            return len(tokens)
        while start < len(tokens):
            end = min(start + self._part_tokens, len(tokens))
            if only_full_parts and end - start < self._part_tokens:
                break
            if not (self.disk.has_room and self._offloading.has_time):
                break
            written = self._write_part(prefix, session, parent, start, end, tokens[start:end])
            if written is None:
                return len(tokens)
            parent, start = written, end
        return start

    def _write_part(
        self,
        prefix: Prefix,
        session: str,
        parent: bytes,
        start: int,
        end: int | None,
        tokens: Seq[int],
    ) -> bytes | None:
        """The name of the part; None if it cannot be copied."""
        state = self._offloading.save(prefix, start, end)
        if state is None:
            return None
        meta, data = self._leaves.store.pack(state)
        return self.disk.put(session, parent, start, tokens, meta, data, is_whole=end is None)
