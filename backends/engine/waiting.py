"""Who waits, and who is next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.kv.tree import common_prefix
from hearth.backends.engine.sequence import Sequence

WORTH_WAITING_FOR: Final = 32
"""A sequence waits for another that computes so many tokens more of its own prompt just now."""
WORTH_WAITING_TIMES: Final = 2
"""A sequence waits for one in the background while no more is left of that than so many times what
need not be computed again: nothing of it can be shared before all of it is done."""


@dataclass(slots=True)
class _Place:
    """A sequence that waits."""

    sequence: Sequence
    arrival: int
    since: int
    """When it arrived, or its session last had another admitted, whichever is later."""
    donor: Sequence | None = None
    """Computes what this one shares with it; admitted later, it finds that."""
    shared: int = 0
    """How much."""
    saves: int = 0
    """How much of that it would have to compute without."""


class Waiting:
    """Sequences without a slot.

    Next is the one of highest priority; of equals the one whose session has the fewest running, and
    of those the one whose session was served longest ago. Where that passes over a session that
    waits for longer, the latter comes next: so a session with something running takes turns with
    newcomers, however many there are. One whose prompt begins with what a running sequence is about
    to compute is passed over until that is there, so that it is computed once.

    Args:
        kv: asked what is held already.
        left_beside: how many tokens are left of a sequence that is computed in the background; 0
            for others.
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
        """Priorities at which the session that waits longest is next, whatever it has running."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def add(self, sequence: Sequence, arrival: int) -> None:
        """Let `sequence` wait; `arrival` is its place in time, also when it comes back."""
        self._places[sequence] = _Place(sequence, arrival, arrival)

    def remove(self, sequence: Sequence) -> None:
        """It waits no more."""
        del self._places[sequence]

    def admit(self, sequence: Sequence, arrivals: int) -> None:
        """It runs from now on, when so many have arrived: the others of its session wait behind all
        that are there.
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
        """Who should be admitted next, beside those `running`; None if nobody should."""
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
                wanted = place.sequence.findable()[:-1]
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
        """Whether `donor` is done soon enough for the `saves` tokens that need not be computed
        again. Outside of the background that is always so: they are the next that it computes.
        """
        return self._left_beside(donor) <= WORTH_WAITING_TIMES * saves

    def _will_share(self, wanted: list[int], donor: Sequence) -> int:
        """How many of `wanted` can be had from `donor` once it has computed them."""
        common = common_prefix(wanted, donor.tokens)
        if self._keeps_past:
            return common
        checkpoint = donor.prompt_tokens - 1
        return checkpoint if common >= checkpoint else 0
