"""Write-behind to disk: parts of running and ended sequences are written between steps, and read
again later.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.kept import KeptPrefixes
from hearth.backends.engine.kv.leaves import Leaves
from hearth.backends.engine.kv.offload import MOST_WHOLE_BYTES, DiskFetch, Offloading
from hearth.backends.engine.kv.tree import Prefix


class WriteBehind:
    """Copies prefixes to the disk tier, within the time that `Offloading` has between steps.

    Running sequences are written in full parts; when a sequence has ended, the rest is written.
    Tokens that the disk already has for the same session are not written again, so each part begins
    where the last one ended. Memories without `keeps_past` are written as a whole, at the end of
    the sequence and at the end of its prompt.

    Args:
        part_tokens: maximum tokens of a part.
        worth_moving: minimum number of tokens that reading must save from being computed.
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
        """By slot: the session under which its tokens are written."""
        self._written: dict[int, int] = {}
        """By slot: how many of its first tokens need not be examined again."""
        self._ended: dict[tuple[Prefix, str], int] = {}
        """(kept prefix, session) -> number of first tokens that belong to the session, of which
        some are not written yet.
        """

    def begin(self, slot: int, session: str | None) -> None:
        """Called when a sequence of `session` begins in `slot`; None: it is not written."""
        self._sessions.pop(slot, None)
        if session is not None:
            self._sessions[slot] = session
            self._written[slot] = 0
            self.disk.begin(session)

    def end(self, slot: int, prefix: Prefix) -> None:
        """Called when the sequence in `slot` ended and `prefix` may soon be shortened: write what
        there is time for.
        """
        if (session := self._sessions.get(slot)) is not None:
            self._write(prefix, session, prefix.length)

    def keep(self, slot: int, kept: Prefix | None, held: int = 0) -> None:
        """The `held` tokens of the ended sequence are the first of `kept`; those not written yet
        are written later. None: they were dropped.
        """
        session = self._sessions.pop(slot, None)
        if session is not None and kept is not None:
            self._ended[kept, session] = max(held, self._ended.get((kept, session), 0))

    def checkpoint(self, slot: int, kept: Prefix) -> None:
        """Write `kept` later: a checkpoint of `slot`, which cannot go back to it."""
        if slot in self._sessions and not self._leaves.keeps_past:
            self._ended[kept, self._sessions[slot]] = kept.length

    @property
    def is_wanted(self) -> bool:
        """Whether tokens of ended sequences can be written now."""
        return bool(self._ended) and self.disk.has_room

    def work(self, slots: Seq[Prefix | None], kept: KeptPrefixes) -> None:
        """Copy tokens that are not written yet, while there is time and the disk keeps up."""
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
        """Start to read parts for a slot that has the first `held` of `tokens`; None if there are
        none that save enough tokens.

        Args:
            reached: number of first tokens that are available without the disk.
        """
        only_whole = not self._leaves.keeps_past
        path = self.disk.find(tokens, namespace, only_whole=only_whole)
        if not path or path[-1][1] - reached < self._worth_moving:
            return None
        starts = [part.start for part, _ in path[1:]]
        ends = [*starts, path[-1][1]]  # A part may begin before the end of the previous one.
        first = next(at for at, end in enumerate(ends) if end > held)
        parts = [part for part, _ in path[first:]]
        wanted = list(tokens[: ends[-1]])
        return DiskFetch(self.disk.load(parts), ends[first:], wanted, held, self.disk.damaged)

    def clear(self) -> None:
        """Delete everything of this model on disk, and do not write what was computed before."""
        self._ended.clear()
        self.disk.clear()

    def _write(
        self, prefix: Prefix, session: str, held: int, *, only_full_parts: bool = False
    ) -> int:
        """Write the first `held` tokens. Returns the number of first tokens that need not, or
        cannot, be written any more.
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
        """Write a part and return its name; None if it cannot be copied."""
        state = self._offloading.save(prefix, start, end)
        if state is None:
            return None
        meta, data = self._leaves.store.pack(state)
        return self.disk.put(session, parent, start, tokens, meta, data, is_whole=end is None)
