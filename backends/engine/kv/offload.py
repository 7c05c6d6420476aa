"""Copies between the KV cache and the host KV tier: which prefixes are offloaded, which come back,
and how much of it a step may wait for.
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
"""Cells that offloading a kept prefix must free, or tokens that a copy must save from being
computed. Even a few cells can cost running sequences a tenth of their speed: llama.cpp's flash
attention cuts the pool at its middle, a part a thread, from the 257th cell in use on."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks at how much memory is free, which take a tenth of a millisecond."""
MOST_WHOLE_BYTES: Final = 128 << 20
"""Of a copy that cannot be made in parts, since streams wait meanwhile: at 6 GB/s a fiftieth of a
second. What has more is computed again."""
COPY_S: Final = 0.02
"""Seconds of copies between two steps. One part is copied even if it takes longer."""


@dataclass(slots=True)
class Fetch:
    """A prefix that is being copied into a slot."""

    parts: list[Part]
    tokens: list[int]
    """Of the prompt, as far as the parts have them."""
    part_tokens: int
    is_waiting = False

    def part_at(self, held: int) -> Part:
        """The part that has the token after the first `held`."""
        return self.parts[held // self.part_tokens]


@dataclass(slots=True)
class DiskFetch:
    """A prefix that is read from disk, and copied into a slot part by part."""

    load: Load
    ends: list[int]
    """Up to which token each part of `load` is copied."""
    tokens: list[int]
    start: int
    """How many of these the slot had before."""
    damaged: Callable[[DiskPart, Exception], None]
    """Told of a part that cannot be read."""
    at: int = 0
    """The part that comes next."""

    @property
    def is_waiting(self) -> bool:
        """The next part is not there yet."""
        return not self.load.has_failed and not self.load.is_there(self.at)


class Offloading:
    """Copies parts of prefixes, for at most `COPY_S` seconds between two calls of `renew`.

    Args:
        leaves: of the prefixes.
        kept_while_running: most pages of kept prefixes that stay while sequences run; None: all.
        part_tokens: tokens of a part; the least that is copied at once.
        worth_moving: tokens that a copy must be worth.
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
        """When memory was looked at."""
        self._memory_bytes: float = 0
        """What offloaded prefixes might take then."""
        self._worth_moving = worth_moving
        self.prefixes = OffloadedPrefixes(part_tokens, keeps_past=leaves.keeps_past)
        self._copies = 0
        """Parts since `renew`."""
        self._spent_s = 0.0
        """What they took."""
        self._part_s = 0.0
        """What the last one took."""

    def renew(self) -> None:
        """A step was made, or none runs: there is time for copies again."""
        self._copies, self._spent_s = 0, 0.0
        now = self._clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            available = self._leaves.store.available_bytes()
            known = math.inf if available is None else available + self.prefixes.nbytes
            self._memory_bytes = known / 2
        self.shrink()

    def shrink(self) -> None:
        """Drop what offloaded prefixes may not take any more."""
        if self.prefixes.nbytes:
            self.prefixes.shrink(self.most_bytes)

    @property
    def has_time(self) -> bool:
        """Whether another part may be copied now."""
        return self._copies == 0 or self._spent_s + self._part_s <= COPY_S

    def out_of_the_way(self, kept: KeptPrefixes) -> Iterator[Prefix]:
        """Sequences run: offload kept prefixes, the least recently used first; each is copied
        completely when it is yielded, and then has to be dropped. Pinned ones stay.
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
        """Copy what `prefix` has and the tier lacks, as far as there is time; whether all of it is
        there now. Where the memory keeps no past, all of it or nothing.
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
            del parts[have // part_tokens :]  # A longer part takes the place of the last.
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
        """A copy of the tokens `start` to `end` of `prefix`, or without these of all of it; None if
        that cannot be had. The time that it takes counts.
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
        """Add `tokens` to the end of `prefix`."""
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
        """What should be copied into a slot that holds the first `held` of `tokens`, or where the
        memory keeps no past, nothing: None unless that saves enough tokens, and at least half of
        all that is copied is used.
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
        """Copy the part that follows what `prefix` has to its end; False where it is gone or there
        is no room for it.
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
        """Whether the tier may hold a prefix of this many tokens; states have headers, too."""
        needed = tokens * self._leaves.store.token_bytes
        return needed + needed // 16 <= self.most_bytes

    @property
    def most_bytes(self) -> int:
        """What offloaded prefixes may take now: no more than they leave free of this machine's
        memory.
        """
        return int(min(self._leaves.store.most_offloaded_bytes, self._memory_bytes))

    def _count(self, began: float) -> None:
        self._part_s = self._clock() - began
        self._spent_s += self._part_s
        self._copies += 1
