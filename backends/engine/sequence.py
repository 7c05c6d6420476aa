"""One stream of tokens that the scheduler runs through the model: known tokens and progress."""

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
    """Times of one request's events, from `time.monotonic()`; 0 if an event has not happened."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


class Sequence(ABC):
    """`total` tokens are known; `computed` of them are in the runner's memory.

    The scheduler computes tokens of a sequence until `computed` reaches `total`. The sequence may
    lose its slot in between (preemption). `computed` is then 0, and it catches up from a prefix
    that is still kept or was offloaded, or by computing the tokens again.

    Args:
        emit: gets its events; the final event is sent exactly once.

    Attributes:
        id: of the request; all choices of one request have the same.
        tokens: all known tokens, [total].
        prompt_tokens: how many of them were known from the start.
        cached: prompt tokens that were found in the cache when it was first admitted.
        slot: its slot in the runner while it runs.
        namespace: stands for everything keys and values depend on besides the tokens and the model.
        streaming: how it continues when its memory is full; None: it does not.
        dropped: tokens after the sinks that it has computed and forgotten.
        pins: (number of first tokens to keep, seconds from their last use), for those not computed
            yet, the fewest tokens first.
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
        """Its drafts; None: it does not speculate."""
        self.pins = sorted(pins)

    @property
    def session_on_disk(self) -> str | None:
        """The session under which keys and values are written to disk; None: not written."""
        return None

    @property
    def total(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.computed

    @property
    def held(self) -> int:
        """Tokens in the runner's memory, which is also the position of the next token there."""
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
        """Called when the sequence is admitted to `slot`, which already holds its first `computed`
        tokens and into which `arriving` more will be copied.
        """
        first = not self.clock.admitted
        self.slot = slot
        self.computed = computed
        if first:
            self.cached = computed + arriving
            self.clock.admitted = time.monotonic()
            self.on_admitted()

    def due_pins(self) -> list[tuple[int, float]]:
        """Remove from `pins`, and return, those whose tokens are computed now."""
        due = [pin for pin in self.pins if pin[0] <= self.computed]
        del self.pins[: len(due)]
        return due

    def stats(self, beside: int, now_s: float) -> RequestStats:
        """Its progress.

        Args:
            beside: tokens that are computed by background prefill and not in the slot yet.
            now_s: current `time.monotonic()`.
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
        """Called when the sequence was preempted; none of it is in the runner's memory now."""
        self._stopped_at = self.computed
        self.computed = self.dropped = 0

    def reusable(self) -> list[int]:
        """Tokens that may be taken from the cache: `cacheable_tokens`, or the ones it had computed
        itself when it was preempted plus one, whichever are more.
        """
        tokens, own = self.cacheable_tokens(), self._stopped_at + 1
        return tokens if len(tokens) >= own else self.tokens[:own]

    @abstractmethod
    def cacheable_tokens(self) -> list[int]:
        """Tokens that may be taken from the cache if held; the last one is always computed."""

    @abstractmethod
    def outputs(self, count: int) -> int:
        """Of the next `count` tokens, the number of last ones after which it needs logits."""

    @property
    def most_drafts(self) -> int:
        """Maximum number of drafts in its next row; one more token is drawn in addition to them."""
        return 0

    def shortlist(self) -> ShortlistSpec | None:
        """The shortlist it needs of the logits after its last token; None: all logits."""
        return None

    def report_progress(self, computed: int) -> None:  # noqa: B027 - not all report it
        """Report progress: `computed` of its tokens are computed now."""

    def on_admitted(self) -> None:  # noqa: B027
        """Called when it runs for the first time."""

    def on_arrived(self) -> None:  # noqa: B027
        """Called when no more of its tokens are copied into its slot; `computed` counts all that
        arrived.
        """

    @abstractmethod
    def take(self, row: Row, result: StepResult) -> FinishReason | None:
        """Process the result of a step that computed `row` of it (`computed` already counts its
        tokens); returns why the sequence ends now, or None.
        """

    def rearranged(self) -> Iterable[Sequence]:
        """Other sequences that the last `take` changed; each is returned once. They are `done`, or
        have other tokens now and may not be among the running or waiting sequences.
        """
        return ()

    @abstractmethod
    def finish(self, reason: FinishReason) -> None:
        """End it without error; a second call does nothing."""

    def fail(self, error: Exception) -> None:
        """End it with `error`; a second call does nothing."""
        self._end(Failed(to_info(error)))

    def _end(self, event: Event | Scores) -> None:
        if not self.done:
            self.done = True
            self._emit(event)
