"""Copies between the KV cache and the host KV tier: which prefixes are offloaded and swapped in,
and how long a step may wait for copies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from hearth.backends.engine.kv.disk import Load
from hearth.backends.engine.kv.disk_files import Damaged, DiskPart, PartData
from hearth.backends.engine.kv.kept import KeptPrefixes
from hearth.backends.engine.kv.leaves import Leaves
from hearth.backends.engine.kv.store import SavedState
from hearth.backends.engine.kv.tier import OffloadedPrefixes, Part
from hearth.backends.engine.kv.tree import Prefix

log = logging.getLogger(__name__)

WORTH_MOVING: Final = 16
"""Minimum number of cells that offloading a kept prefix must free, or of tokens that a copy must
save from being computed. Even a few cells can slow running sequences by a tenth: llama.cpp's flash
attention splits the pool in the middle, one part per thread, from the 257th used cell on."""
LOOK_EVERY_S: Final = 1.0
"""Interval between checks of free memory, each of which takes a tenth of a millisecond."""
MOST_WHOLE_BYTES: Final = 128 << 20
"""Maximum size of a copy that cannot be made in parts, since streams wait meanwhile: a fiftieth of
a second at 6 GB/s. Larger states are computed again."""
COPY_S: Final = 0.02
"""Time for copies between two steps, in seconds. One part is copied even if it takes longer."""


@dataclass(slots=True)
class Fetch:
    """A prefix that is being copied into a slot."""

    parts: list[Part]
    tokens: list[int]
    """The tokens of the prompt that the parts cover."""
    part_tokens: int
    is_waiting = False

    def part_at(self, held: int) -> Part:
        """The part with the token after the first `held`."""
        return self.parts[held // self.part_tokens]


@dataclass(slots=True)
class DiskFetch:
    """A prefix that is being read from disk and copied into a slot part by part."""

    load: Load
    ends: list[int]
    """For each part of `load`, the end of the tokens that are copied from it."""
    tokens: list[int]
    start: int
    """How many of `tokens` the slot had before."""
    damaged: Callable[[DiskPart, Exception], None]
    """Called with a part that cannot be read."""
    at: int = 0
    """Index of the next part."""

    @property
    def is_waiting(self) -> bool:
        """Whether the next part is still being read."""
        return not self.load.has_failed and not self.load.is_there(self.at)


class Offloading:
    """Copies parts of prefixes, for at most `COPY_S` seconds between two calls of `renew`.

    Args:
        leaves: of the prefixes.
        kept_while_running: maximum pages of kept prefixes that stay while sequences run; None: all.
        part_tokens: tokens per part, the smallest amount that is copied at once.
        worth_moving: minimum number of tokens that a copy must save.
        clock: seconds.
    """

    def __init__(
        self,
        leaves: Leaves,
        *,
        kept_while_running: int | None,
        part_tokens: int,
        worth_moving: int,
        clock: Callable[[], float],
    ) -> None:
        self._leaves = leaves
        self._most_kept = kept_while_running
        self._clock = clock
        self._looked_at = -math.inf
        """Time of the last check of free memory."""
        self._memory_bytes: float = 0
        """Bytes that offloaded prefixes could take at that time."""
        self._worth_moving = worth_moving
        self.prefixes = OffloadedPrefixes(part_tokens, keeps_past=leaves.keeps_past)
        self._copies = 0
        """Parts copied since `renew`."""
        self._spent_s = 0.0
        """Time that those copies took."""
        self._part_s = 0.0
        """Time that the last copy took."""

    def renew(self) -> None:
        """Called after a step, or while none runs: allow time for copies again."""
        self._copies, self._spent_s = 0, 0.0
        now = self._clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            available = self._leaves.store.available_bytes()
            known = math.inf if available is None else available + self.prefixes.nbytes
            self._memory_bytes = known / 2
        self.shrink()

    def shrink(self) -> None:
        """Drop offloaded parts until they fit `most_bytes`."""
        if self.prefixes.nbytes:
            self.prefixes.shrink(self.most_bytes)

    @property
    def has_time(self) -> bool:
        """Whether another part may be copied now."""
        return self._copies == 0 or self._spent_s + self._part_s <= COPY_S

    def out_of_the_way(self, kept: KeptPrefixes) -> Iterator[Prefix]:
        """While sequences run, offload kept prefixes, the least recently used first. Each prefix
        has been copied completely when it is yielded, and the caller must drop it then. Pinned
        prefixes stay.
        """
        if self._most_kept is None or not self._leaves.keeps_past:
            return
        first = self._leaves.first
        for prefix in kept.loose:
            if first.idle + first.only_pinned <= self._most_kept:
                return
            own = self._leaves.tree.own_pages(prefix) * first.page
            if own < self._worth_moving or not self._fits(prefix.length):
                continue
            if not self.copy_out(prefix):
                return
            yield prefix

    def copy_out(self, prefix: Prefix, *, only_full_parts: bool = False) -> bool:
        """Copy what `prefix` has and the tier lacks, as far as there is time; returns whether the
        tier has all of it now. Without `keeps_past`, all of it is copied or nothing.
        """
        tokens = self._leaves.tree.tokens(prefix).tolist()
        if not self._leaves.keeps_past:
            return not only_full_parts and self._copy_whole(prefix, tokens)
        part_tokens = self.prefixes.part_tokens
        if only_full_parts:
            del tokens[len(tokens) // part_tokens * part_tokens :]
        if not self._fits(len(tokens)):
            return False
        prefixes = self.prefixes
        path = prefixes.path(tokens, prefix.namespace)
        have = sum(common for _, common in path)
        parts = [part for part, _ in path]
        prefixes.use(parts)
        if have < len(tokens):
            del parts[have // part_tokens :]  # A longer part replaces the last one.
        while have < len(tokens):
            if not self.has_time:
                return False
            start = len(parts) * part_tokens
            end = min(start + part_tokens, len(tokens))
            state = self.save(prefix, start, end)
            if state is None:
                return False
            parts.append(prefixes.add(parts, tokens[start:end], state, prefix.namespace))
            self.shrink()
            if parts[-1] not in prefixes:
                return False
            have = end
        return True

    def save(self, prefix: Prefix, start: int = 0, end: int | None = None) -> SavedState | None:
        """A copy of the tokens `start` to `end` of `prefix`, or without `end` of all of it; None if
        not possible. Its time counts towards `COPY_S`.
        """
        began = self._clock()
        try:
            if end is None:
                state = self._leaves.save(prefix)
            else:
                state = self._leaves.save_part(prefix, start, end)
        except (MemoryError, RuntimeError) as error:  # PyTorch's errors are RuntimeErrors.
            log.warning("a prefix could not be copied: %s", error)
            state = None
        self._count(began)
        return state

    def _restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Append `tokens`, whose keys and values are in `state`, to `prefix`; False on failure."""
        began = self._clock()
        if self._leaves.keeps_past:
            is_done = self._leaves.restore_part(prefix, state, tokens)
        else:
            is_done = not prefix.length and self._leaves.restore(prefix, state, tokens)
        self._count(began)
        return is_done

    def _copy_whole(self, prefix: Prefix, tokens: list[int]) -> bool:
        needed = self._leaves.saved_bytes(prefix)
        if needed > min(MOST_WHOLE_BYTES, self.most_bytes):
            return False
        part = self.prefixes.whole(tokens, prefix.namespace)
        if part is None or len(part.tokens) < len(tokens):
            state = self.save(prefix)
            if state is None:
                return False
            part = self.prefixes.add([], tokens, state, prefix.namespace)
        self.prefixes.use([part])
        self.shrink()
        return part in self.prefixes

    def fetch(self, tokens: Seq[int], namespace: bytes, held: int) -> Fetch | None:
        """What to copy into a slot that holds the first `held` of `tokens` (an empty slot without
        `keeps_past`). None unless the copy saves enough tokens, and at least half of the copied
        tokens are used.
        """
        if not self.prefixes.nbytes:
            return None
        if not self._leaves.keeps_past:
            part = self.prefixes.whole(tokens, namespace)
            if part is None or len(part.tokens) - held < self._worth_moving:
                return None
            return Fetch([part], list(part.tokens), len(part.tokens))
        path = self.prefixes.path(tokens, namespace)
        if path and 2 * path[-1][1] < len(path[-1][0].tokens):
            path.pop()
        end = sum(common for _, common in path)
        first = held // self.prefixes.part_tokens
        copied = sum(len(part.tokens) for part, _ in path[first:])
        if end - held < self._worth_moving or 2 * (end - held) < copied:
            return None
        parts = [part for part, _ in path]
        return Fetch(parts, list(tokens[:end]), self.prefixes.part_tokens)

    def copy_in(self, prefix: Prefix, fetch: Fetch | DiskFetch) -> bool:
        """Copy the part that comes next to the end of `prefix`; False if the part no longer exists
        or there is no room for it.
        """
        held = prefix.length
        if isinstance(fetch, DiskFetch):
            return self._copy_from_disk(prefix, fetch)
        part = fetch.part_at(held)
        if part not in self.prefixes or not self._has_room(part.tokens):
            return False
        at = held // fetch.part_tokens
        end = min(at * fetch.part_tokens + len(part.tokens), len(fetch.tokens))
        self.prefixes.use(fetch.parts[: at + 1])
        return self._restore(prefix, part.state, fetch.tokens[held:end])

    def _copy_from_disk(self, prefix: Prefix, fetch: DiskFetch) -> bool:
        part = fetch.load.parts[fetch.at]
        if not fetch.load.is_there(fetch.at) or not self._has_room(part.tokens):
            return False
        wanted = fetch.tokens[prefix.length : fetch.ends[fetch.at]]
        try:
            state = self._leaves.store.unpack(part.meta, PartData(part))
            if state is None or not self._restore(prefix, state, wanted):
                return False
        except MemoryError:
            return False
        except (OSError, Damaged) as error:
            fetch.damaged(part, error)
            return False
        fetch.at += 1
        return True

    def _has_room(self, tokens: Seq[int]) -> bool:
        return not self._leaves.keeps_past or self._leaves.has_room_for_part(len(tokens))

    def _fits(self, tokens: int) -> bool:
        """Whether the tier may hold a prefix of `tokens` tokens, with a margin for headers."""
        needed = tokens * self._leaves.store.token_bytes
        return needed + needed // 16 <= self.most_bytes

    @property
    def most_bytes(self) -> int:
        """Bytes that offloaded prefixes may take now: no more than they leave free of the machine's
        memory.
        """
        return int(min(self._leaves.store.most_offloaded_bytes, self._memory_bytes))

    def _count(self, began: float) -> None:
        self._part_s = self._clock() - began
        self._spent_s += self._part_s
        self._copies += 1
