"""Copies between the key-value memory and the host KV tier: which prefixes are offloaded, which
come back, and how much of it a step may wait for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from hearth.backends.engine.cells import CellPool
from hearth.backends.engine.kept import KeptPrefixes
from hearth.backends.engine.offloaded import OffloadedPrefixes, Part
from hearth.backends.engine.radix import RadixIndex
from hearth.backends.engine.sequence_store import SequenceStore

WORTH_MOVING: Final = 16
"""Cells that offloading a kept prefix must free, or tokens that a copy must save from being
computed. Even a few cells can cost running sequences a tenth of their speed: llama.cpp's flash
attention cuts the pool at its middle, a part a thread, from the 257th cell in use on."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks at how much memory is free, which take a tenth of a millisecond."""
COPY_S: Final = 0.02
"""Seconds of copies between two steps. One part is copied even if it takes longer."""


@dataclass(slots=True)
class Fetch:
    """A prefix that is being copied into a slot."""

    parts: list[Part]
    tokens: list[int]
    """Of the prompt, as far as the parts have them."""
    part_tokens: int

    def part_at(self, held: int) -> Part:
        """The part that has the token after the first `held`."""
        return self.parts[held // self.part_tokens]


class Offloading:
    """Copies parts of prefixes, for at most `COPY_S` seconds between two calls of `renew`.

    Args:
        store: where the sequences are.
        pool: which cells they hold.
        index: which tokens they hold.
        beside: most cells of kept prefixes that stay while sequences run; None: all of them.
        part_tokens: tokens of a part; the least that is copied at once.
        available_bytes: memory that could still be taken; None: enough.
        clock: seconds.
    """

    def __init__(
        self,
        store: SequenceStore,
        pool: CellPool,
        index: RadixIndex,
        *,
        beside: int | None,
        part_tokens: int,
        available_bytes: Callable[[], int] | None,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._pool = pool
        self._index = index
        self._most_beside = beside
        self._available_bytes = available_bytes
        self._clock = clock
        self._looked_at = -math.inf
        """When memory was looked at."""
        self._memory_bytes = 0
        """What offloaded prefixes might take then."""
        self.worth_moving = WORTH_MOVING
        self.prefixes = OffloadedPrefixes(part_tokens)
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
        if self._available_bytes is not None and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._memory_bytes = (self._available_bytes() + self.prefixes.nbytes) // 2
        self.shrink()

    def shrink(self) -> None:
        """Drop what offloaded prefixes may not take any more."""
        self.prefixes.shrink(self.most_bytes)

    @property
    def has_time(self) -> bool:
        """Whether another part may be copied now."""
        return self._copies == 0 or self._spent_s + self._part_s <= COPY_S

    def out_of_the_way(self, live: Seq[int], kept: KeptPrefixes) -> Iterator[int]:
        """Offload kept prefixes, the least recently used first; each is copied completely when it
        is yielded, and then has to be dropped from the pool. Pinned ones stay.

        Args:
            live: the sequences that run.
        """
        if self._most_beside is None or not self._store.keeps_past:
            return
        for sequence in kept.loose() if live else ():
            if self._pool.cells - self._pool.cells_of(live) <= self._most_beside:
                return
            others = [other for other in (*live, *kept) if other != sequence]
            own = self._pool.cells - self._pool.cells_of(others)
            if own < self.worth_moving or not self._fits(self._index.length(sequence)):
                continue
            if not self.copy_out(sequence):
                return
            yield sequence

    def copy_out(self, sequence: int, *, only_full_parts: bool = False) -> bool:
        """Copy what `sequence` holds and the tier lacks, as far as there is time; whether all of it
        is there now.
        """
        tokens = self._index.tokens(sequence)
        if only_full_parts:
            del tokens[len(tokens) // self.prefixes.part_tokens * self.prefixes.part_tokens :]
        if not self._store.keeps_past or not self._fits(len(tokens)):
            return False
        prefixes = self.prefixes
        path = prefixes.path(tokens)
        have = sum(common for _, common in path)
        parts = [part for part, _ in path]
        prefixes.use(parts)
        if have < len(tokens):
            del parts[have // prefixes.part_tokens :]  # A longer part takes the place of the last.
        while have < len(tokens):
            if not self.has_time:
                return False
            start = len(parts) * prefixes.part_tokens
            end = min(start + prefixes.part_tokens, len(tokens))
            began = self._clock()
            state = self._store.save_part(sequence, start, end)
            self._count(began)
            if state is None:
                return False
            parts.append(prefixes.add(parts, tokens[start:end], state))
            self.shrink()
            if parts[-1] not in prefixes:
                return False
            have = end
        return True

    def fetch(self, tokens: Seq[int], held: int) -> Fetch | None:
        """What should be copied into a slot that holds the first `held` of `tokens`: None unless
        that saves enough tokens, and at least half of all that is copied is used.
        """
        path = self.prefixes.path(tokens)
        if path and 2 * path[-1][1] < len(path[-1][0].tokens):
            path.pop()
        end = sum(common for _, common in path)
        first = held // self.prefixes.part_tokens
        copied = sum(len(part.tokens) for part, _ in path[first:])
        if end - held < self.worth_moving or 2 * (end - held) < copied:
            return None
        parts = [part for part, _ in path]
        return Fetch(parts, list(tokens[:end]), self.prefixes.part_tokens)

    def copy_in(self, sequence: int, held: int, fetch: Fetch) -> int:
        """Copy the part that follows the first `held` tokens into `sequence`; returns how many of
        its tokens that gives, 0 where it is gone or there is no room for it.
        """
        part = fetch.part_at(held)
        if part not in self.prefixes:
            return 0
        at = held // fetch.part_tokens
        end = min(at * fetch.part_tokens + len(part.tokens), len(fetch.tokens))
        # All of it needs cells for a moment, and a larger pool is worth more than a few tokens.
        cells = self._pool.cells + len(part.tokens)
        if cells > max(self._store.allocated_tokens, self._pool.promised_cells):
            return 0
        self.prefixes.use(fetch.parts[: at + 1])
        began = self._clock()
        is_done = self._store.restore_part(sequence, part.state, held, end)
        self._count(began)
        return end - held if is_done else 0

    def _fits(self, tokens: int) -> bool:
        """Whether the tier may hold a prefix of this many tokens; states have headers, too."""
        needed = tokens * self._store.token_bytes
        return needed + needed // 16 <= self.most_bytes

    @property
    def most_bytes(self) -> int:
        """What offloaded prefixes may take now: no more than they leave free of this machine's
        memory.
        """
        most = self._store.most_offloaded_bytes
        return most if self._available_bytes is None else min(most, self._memory_bytes)

    def _count(self, began: float) -> None:
        self._part_s = self._clock() - began
        self._spent_s += self._part_s
        self._copies += 1
