"""The queue of waiting sequences, and the choice of the next one to admit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.kv.tree import common_prefix
from hearth.backends.engine.sequence import Sequence

WORTH_WAITING_FOR: Final = 32
"""A sequence waits for a running one that is about to compute at least this many more tokens of the
prompt that both share."""
WORTH_WAITING_TIMES: Final = 2
"""A sequence waits for one in background prefill only while the tokens left there are at most this
many times the tokens it would save: nothing of that prompt can be shared before all is done."""


@dataclass(slots=True)
class _Place:
    """A sequence that waits."""

    sequence: Sequence
    arrival: int
    since: int
    """When it arrived, or when another sequence of its session was last admitted, if that is later.
    """
    donor: Sequence | None = None
    """A running sequence that computes the first tokens of this one, which waits to reuse them."""
    shared: int = 0
    """Number of first tokens that it shares with `donor`."""
    saves: int = 0
    """How many of those it would otherwise have to compute itself."""


class Waiting:
    """Sequences without a slot.

    The next one is the sequence of highest priority; among equals, the one whose session has the
    fewest running, and among those, the one whose session was served longest ago. If that passes
    over a session that has waited longer, the latter comes next, so that a session with running
    sequences alternates with newcomers, however many there are. A sequence whose prompt begins with
    tokens that a running sequence is about to compute is passed over until they are computed, so
    that they are computed once.

    Args:
        kv: used to look up which tokens are already held.
        left_beside: returns how many tokens of a sequence are left to compute in background
            prefill; 0 for others.
        keeps_past: see `RunnerInfo`.
    """

    def __init__(
        self, kv: KvManager, left_beside: Callable[[Sequence], int], *, keeps_past: bool
    ) -> None:
        self._kv = kv
        self._left_beside = left_beside
        self._keeps_past = keeps_past
        self._places: dict[Sequence, _Place] = {}
        self._owed: set[int] = set()
        """Priorities at which the session that has waited longest is next, even if it has running
        sequences.
        """

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def add(self, sequence: Sequence, arrival: int) -> None:
        """Add `sequence`; `arrival` is its order of arrival, which it keeps after a preemption."""
        self._places[sequence] = _Place(sequence, arrival, arrival)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence`, which waits no more."""
        del self._places[sequence]

    def admit(self, sequence: Sequence, arrivals: int) -> None:
        """Remove `sequence`, which runs from now on. The others of its session move behind all
        sequences that have arrived so far.

        Args:
            arrivals: number of sequences that have arrived so far.
        """
        admitted = self._places.pop(sequence)
        priority = sequence.priority
        others = self._places.values()
        if any(p.since < admitted.since and p.sequence.priority == priority for p in others):
            self._owed.add(priority)
        else:
            self._owed.discard(priority)
        for place in others:
            if place.sequence.session == sequence.session:
                place.since = arrivals

    def first(self, running: Collection[Sequence]) -> Sequence | None:
        """The sequence to admit next, in addition to those `running`; None if there is none."""
        if not self._places:
            return None
        active = Counter(sequence.session for sequence in running)

        def turn(place: _Place) -> tuple[int, ...]:
            sequence = place.sequence
            running, since = active[sequence.session], place.since
            order = (since, running) if sequence.priority in self._owed else (running, since)
            return -sequence.priority, *order, place.arrival

        for place in sorted(self._places.values(), key=turn):
            if not self._awaits_donor(place, running):
                return place.sequence
        return None

    def _awaits_donor(self, place: _Place, running: Collection[Sequence]) -> bool:
        if place.donor is not None:
            donor = place.donor
            is_ahead = donor.slot is not None and donor.computed < place.shared
            if is_ahead and self._is_soon(donor, place.saves):
                return True
            place.donor = None
        held = -1
        wanted: list[int] | None = None
        for donor in running:
            if donor.pending < 2 or donor.priority < place.sequence.priority:
                continue
            mine = place.sequence
            if (donor.namespace, donor.streaming) != (mine.namespace, mine.streaming):
                continue
            if wanted is None:
                wanted = place.sequence.cacheable_tokens()[:-1]
            shared = self._will_share(wanted, donor)
            if shared < donor.computed + WORTH_WAITING_FOR:
                continue
            if held < 0:
                held = self._kv.match(place.sequence.reusable(), place.sequence.namespace)
            if shared >= held + WORTH_WAITING_FOR and self._is_soon(donor, shared - held):
                place.donor, place.shared, place.saves = donor, shared, shared - held
                return True
        return False

    def _is_soon(self, donor: Sequence, saves: int) -> bool:
        """Whether `donor` is done soon enough to be worth waiting for, given the `saves` tokens
        that need not be recomputed. Outside background prefill it always is, because those are the
        next tokens that it computes.
        """
        return self._left_beside(donor) <= WORTH_WAITING_TIMES * saves

    def _will_share(self, wanted: list[int], donor: Sequence) -> int:
        """How many of `wanted` can be shared with `donor` once it has computed them."""
        common = common_prefix(wanted, donor.tokens)
        if self._keeps_past:
            return common
        checkpoint = donor.prompt_tokens - 1
        return checkpoint if common >= checkpoint else 0
