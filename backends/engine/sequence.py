"""One stream of tokens that the scheduler brings through the model: what is known of it, and how
far it is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from hearth.backends.contract.events import Event, Failed, FinishReason, Scores
from hearth.backends.contract.loaded import RequestState, RequestStats
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.shortlist import ShortlistSpec
from hearth.backends.engine.streaming import Streaming
from hearth.backends.errors import to_info

Emit = Callable[[Event], None]


@dataclass(slots=True)
class Clock:
    """Moments of one request, from `time.monotonic()`; 0 where it has not happened yet."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


class Sequence(ABC):
    """`total` tokens are known, `computed` of them are in the runner's memory.

    The scheduler gives a sequence tokens until `computed` reaches `total`. It may lose its slot in
    between (preemption); `computed` is 0 then, and it catches up again from a prefix that is still
    kept or was offloaded, or by computing once more.

    Args:
        emit: gets its events, of which the last one is sent once.

    Attributes:
        id: of the request; choices of one request have the same.
        tokens: all that are known, [total].
        prompt_tokens: how many of them were there from the start.
        cached: prompt tokens that were found when it was first admitted.
        slot: its place in the runner, while it runs.
        namespace: of what keys and values depend on besides the tokens and the model.
        streaming: how it goes on when its memory is full; None: it does not.
        dropped: tokens after the sinks that it has computed and forgotten.
        pins: how many first tokens are to be kept, and for how many seconds from their last use;
            those that are not computed yet, the fewest first.
    """

    def __init__(
        self,
        ident: int,
        tokens: list[int],
        *,
        priority: int = 0,
        session: str = "",
        clock: Clock | None = None,
        pins: Seq[tuple[int, float]] = (),
        namespace: bytes = b"",
        emit: Callable[[Any], None] = lambda event: None,
    ) -> None:
        self._emit = emit
        self.namespace = namespace
        self.id = ident
        self.tokens = tokens
        self.prompt_tokens = len(tokens)
        self.priority = priority
        self.session = session
        self.clock = clock or Clock()
        self.computed = 0
        self.cached = 0
        self.slot: int | None = None
        self.streaming: Streaming | None = None
        self.dropped = 0
        self._stopped_at = 0
        self.done = False
        self.speculating: Speculating | None = None
        """Its drafts; None: it has none."""
        self.pins = sorted(pins)

    @property
    def session_on_disk(self) -> str | None:
        """Whose keys and values these are on disk; None: they are not written."""
        return None

    @property
    def total(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed

    @property
    def held(self) -> int:
        """Tokens in the runner's memory: the position there of the next one."""
        return self.computed - self.dropped

    @property
    def room(self) -> int:
        """Tokens that its slot needs room for."""
        total = self.total - self.dropped
        return total if self.streaming is None else min(total, self.streaming.most)

    @property
    def computable(self) -> int:
        """How many of the `pending` tokens can be computed before some are forgotten."""
        return self.pending if self.streaming is None else self.room - self.held

    def start(self, slot: int, computed: int, arriving: int = 0) -> None:
        """The scheduler admitted it to `slot`, where its first `computed` tokens are already, and
        `arriving` more will be copied.
        """
        first = not self.clock.admitted
        self.slot = slot
        self.computed = computed
        if first:
            self.cached = computed + arriving
            self.clock.admitted = time.monotonic()
            self.on_admitted()

    def due_pins(self) -> list[tuple[int, float]]:
        """Take those out of `pins` whose tokens are computed now."""
        due = [pin for pin in self.pins if pin[0] <= self.computed]
        del self.pins[: len(due)]
        return due

    def stats(self, beside: int, now_s: float) -> RequestStats:
        """How far it is.

        Args:
            beside: tokens of it that are computed, and not in its slot yet.
            now_s: what `time.monotonic` says.
        """
        made = max(0, self.total - self.prompt_tokens)
        state: RequestState = "queued"
        if self.slot is not None:
            state = "decoding" if made and self.pending <= 1 else "prefill"
        lasted_s = now_s - self.clock.first_token if self.clock.first_token else 0.0
        return RequestStats(
            self.id,
            self.session,
            state,
            self.prompt_tokens,
            max(self.computed, beside),
            self.cached,
            made,
            (made - 1) / lasted_s if made > 1 and lasted_s > 0 else 0.0,
            self.dropped,
        )

    def stop(self) -> None:
        """The scheduler put it aside; nothing of it is in the runner's memory now."""
        self._stopped_at = self.computed
        self.computed = self.dropped = 0

    def reusable(self) -> list[int]:
        """Tokens whose computation need not be repeated: those that are `findable`, or that it had
        computed itself when it was put aside, with one more.
        """
        tokens, own = self.findable(), self._stopped_at + 1
        return tokens if len(tokens) >= own else self.tokens[:own]

    @abstractmethod
    def findable(self) -> list[int]:
        """Tokens whose computation need not be repeated if somebody holds them already; the last
        one is always computed.
        """

    @abstractmethod
    def outputs(self, count: int) -> int:
        """After how many of the last of the next `count` tokens it needs logits."""

    @property
    def most_drafts(self) -> int:
        """Guesses that its next row may have: one token is drawn besides them."""
        return 0

    def shortlist(self) -> ShortlistSpec | None:
        """What it needs of the logits after its last token; None: all of them."""
        return None

    def tell(self, computed: int) -> None:  # noqa: B027 - not all report it
        """`computed` of its tokens are there now."""

    def on_admitted(self) -> None:  # noqa: B027
        """It runs for the first time."""

    def on_arrived(self) -> None:  # noqa: B027
        """No more of its tokens are copied into its slot: `computed` has all that came."""

    @abstractmethod
    def take(self, row: Row, result: StepResult) -> FinishReason | None:
        """A step has computed `row` of it (`computed` counts its tokens); returns why it ends now,
        or None.
        """

    def rearranged(self) -> Iterable[Sequence]:
        """Others that the last `take` changed, each once: they are `done`, or have other tokens now
        and may lack a place among those that run or wait.
        """
        return ()

    @abstractmethod
    def finish(self, reason: FinishReason) -> None:
        """End it well, once; a second call does nothing."""

    def fail(self, error: Exception) -> None:
        """End it with `error`, once; a second call does nothing."""
        self._end(Failed(to_info(error)))

    def _end(self, event: Event | Scores) -> None:
        if not self.done:
            self.done = True
            self._emit(event)
