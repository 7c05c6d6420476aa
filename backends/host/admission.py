"""Admission of calls to one model: the resources of each call are reserved before any work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.wire import MAX_FRAME_BYTES, Cost, Least
from hearth.backends.errors import Busy, prompt_too_long

MOST_HELD_BYTES: Final = 2 * MAX_FRAME_BYTES
"""Most bytes of the bodies of all admitted calls together."""
PRESENT_S: Final = 10.0
"""Seconds after its last call during which half of the limits stays free for an identity."""
_MOST_IDENTITIES: Final = 1024
"""Most identities whose last call is remembered; tickets are not affected by this limit."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Amounts of the limited resources."""

    sessions: int = 0
    nbytes: int = 0

    def __add__(self, other: _Held) -> _Held:
        return _Held(self.sessions + other.sessions, self.nbytes + other.nbytes)

    def within(self, most: _Held) -> bool:
        """Whether no amount exceeds its limit in `most`."""
        return self.sessions <= most.sessions and self.nbytes <= most.nbytes

    def at_most(self, most: _Held) -> _Held:
        """Each amount, or its limit in `most` if that is less."""
        return _Held(min(self.sessions, most.sessions), min(self.nbytes, most.nbytes))


@dataclass(slots=True, eq=False)
class Ticket:
    """One admitted call and what is reserved for it."""

    identity: str
    cost: Cost
    held: _Held


class Admission:
    """Counts sequences and bytes of the calls to one model.

    A call is admitted as a whole or not at all. Tokens are not counted: a sequence takes one
    context at most, and the worker preempts if memory is short. Not thread-safe: it is used in the
    host's event loop only.

    An identity that is alone may hold everything. While another identity holds something, or has
    made a call within `PRESENT_S`, an identity gets no more than half of the limits. What it holds
    beyond that does not count against the others, so their half is free. At most one identity
    holds more than half, so at most 1.5 times the limits, rounded up, are held.

    Args:
        max_sessions: sequences that run at the same time.
        max_waiting: number of further sequences that may wait; may be changed at any time.
        name: the model's name, for error messages.
        clock: returns seconds.
    """

    def __init__(
        self,
        max_sessions: int,
        max_waiting: int,
        name: str = "the model",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max(1, max_sessions)
        self.max_waiting = max_waiting
        self._name = name
        self._clock = clock
        self._context: int | None = None
        self._longest_token_bytes = 0
        self._tickets: list[Ticket] = []
        self._last_asked: dict[str, float] = {}
        self._mean_s = 1.0

    def opened(self, context: int, max_sessions: int, longest_token_bytes: int = 0) -> None:
        """The model is loaded: from now on these numbers are the limits.

        Args:
            longest_token_bytes: `ModelInfo.longest_token_bytes`.
        """
        self._context = context
        self._max_sessions = max_sessions
        self._longest_token_bytes = longest_token_bytes

    def admit(
        self, cost: Cost, identity: str = "", nbytes: int = 0, *, check_length: bool = True
    ) -> Ticket:
        """Reserve the resources that a call of `identity` may take, including its body of `nbytes`.
        A call is always admitted if no other call is; the worker then decides whether it fits.

        Args:
            check_length: the model is loaded with the settings of the call, so its context is
                known.

        Raises:
            PromptTooLong: the prompt certainly has more tokens than the context.
            Busy: there is no room; `retry_after_s` is estimated from the duration of recent calls.
        """
        if check_length:
            self.check_length(cost.least)
        self._remember(identity)
        ticket = Ticket(identity, cost, _Held(cost.sessions, nbytes))
        if not self._has_room(ticket):
            sessions = sum(each.held.sessions for each in self._tickets)
            wait_s = max(1.0, (1 + sessions / self._max_sessions) * self._mean_s)
            raise Busy(
                f"{sessions} requests are running or waiting for {self._name}.",
                f"Try again in about {wait_s:.0f} s.",
                retry_after_s=round(wait_s, 1),
            )
        self._tickets.append(ticket)
        return ticket

    def check_length(self, least: Least | None) -> None:
        """Raises `PromptTooLong` if a sequence of size `least` exceeds the context, if known."""
        if least is None or self._context is None:
            return
        tokens = least.tokens
        if self._longest_token_bytes:
            tokens = max(tokens, -(-least.nbytes // self._longest_token_bytes))
        if tokens > self._context:
            raise prompt_too_long(
                least.param, tokens, self._context, at_least=tokens != least.tokens
            )

    def _remember(self, identity: str) -> None:
        now = self._clock()
        self._last_asked.pop(identity, None)  # Keeps the dictionary ordered by time.
        self._last_asked[identity] = now
        while len(self._last_asked) > _MOST_IDENTITIES:
            del self._last_asked[next(iter(self._last_asked))]

    def _has_room(self, ticket: Ticket) -> bool:
        if not self._tickets:
            return True
        held: dict[str, _Held] = {}
        for each in self._tickets:
            held[each.identity] = held.get(each.identity, _Held()) + each.held
        most, half = self._limits()
        own = held.pop(ticket.identity, None)
        total = ticket.held if own is None else own + ticket.held
        if not held and not self._others_asked(ticket.identity):
            return total.within(most)
        if own is not None and not total.within(half):
            return False
        for other in held.values():
            total += other.at_most(half)
        return total.within(most)

    def _others_asked(self, identity: str) -> bool:
        """Whether another identity has made a call within `PRESENT_S`."""
        since = self._clock() - PRESENT_S
        for other, asked_at in reversed(self._last_asked.items()):
            if asked_at < since:
                return False
            if other != identity:
                return True
        return False

    def _limits(self) -> tuple[_Held, _Held]:
        """Limits for all identities together, and for one identity of several."""
        sessions = self._max_sessions + max(0, self.max_waiting)
        most = _Held(sessions, MOST_HELD_BYTES)
        return most, _Held(max(1, sessions // 2), MOST_HELD_BYTES // 2)

    def release(self, ticket: Ticket, took_s: float | None = None) -> None:
        """Release the resources of a call that took `took_s` seconds; None: the call was refused,
        so its duration is not counted.
        """
        self._tickets.remove(ticket)
        if ticket.cost.computes and took_s is not None:
            self._mean_s += 0.2 * (took_s - self._mean_s)
