"""Admission of calls to one model: what each may take is reserved before any work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.wire import MAX_FRAME_BYTES, Cost, Least
from hearth.backends.errors import Busy, prompt_too_long

MOST_HELD_BYTES: Final = 2 * MAX_FRAME_BYTES
"""Bodies of all admitted calls together."""
PRESENT_S: Final = 10.0
"""Half stays free for an identity this long after its last call, in seconds."""
_MOST_IDENTITIES: Final = 1024
"""More are not remembered; those that hold something always are."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Amounts of what is limited."""

    sessions: int = 0
    nbytes: int = 0

    def __add__(self, other: _Held) -> _Held:
        return _Held(self.sessions + other.sessions, self.nbytes + other.nbytes)

    def within(self, most: _Held) -> bool:
        """Is none of it more than `most`?"""
        return self.sessions <= most.sessions and self.nbytes <= most.nbytes

    def at_most(self, most: _Held) -> _Held:
        """It, or `most` where that is less."""
        return _Held(min(self.sessions, most.sessions), min(self.nbytes, most.nbytes))


@dataclass(slots=True, eq=False)
class Ticket:
    """One admitted call and what is reserved for it."""

    identity: str
    cost: Cost
    held: _Held


class Admission:
    """Counts sequences and bytes of the calls to one model. Not thread-safe: it belongs to the
    host's event loop, and a call is admitted as a whole or not at all. Tokens need no count of
    their own: a sequence takes one context at most, and the worker preempts where memory is short.

    An identity that is alone may hold everything. While another holds or asks for something, or did
    so within `PRESENT_S`, it gets no more than half; what it holds beyond that does not count
    against the others, so they find their half free. At most one identity holds more than half, so
    never more than 1.5 times the limits, rounded up, are held.

    Args:
        max_sessions: sequences that run at the same time.
        max_waiting: how many more may wait; may be changed at any time.
        name: the model's, for errors.
        clock: seconds.
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
        """The model is loaded: these numbers limit what follows.

        Args:
            longest_token_bytes: `ModelInfo.longest_token_bytes`.
        """
        self._context = context
        self._max_sessions = max_sessions
        self._longest_token_bytes = longest_token_bytes

    def admit(
        self, cost: Cost, identity: str = "", nbytes: int = 0, *, check_length: bool = True
    ) -> Ticket:
        """Reserve what a call of `identity` may take, its body of `nbytes` included. A call is
        always admitted where nothing else is: the worker decides whether it fits.

        Args:
            check_length: the model is loaded as the call wants it, so that its context is known.

        Raises:
            PromptTooLong: the prompt has certainly more tokens than the context.
            Busy: with `retry_after_s` from how long calls took recently.
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
        """Raises `PromptTooLong` if a sequence with `least` exceeds the context, where that is
        known.
        """
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
        self._last_asked.pop(identity, None)  # So that the dictionary is in the order of time.
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
        """Has another identity asked within `PRESENT_S`?"""
        since = self._clock() - PRESENT_S
        for other, asked_at in reversed(self._last_asked.items()):
            if asked_at < since:
                return False
            if other != identity:
                return True
        return False

    def _limits(self) -> tuple[_Held, _Held]:
        """What all together may hold, and one identity of several."""
        sessions = self._max_sessions + max(0, self.max_waiting)
        most = _Held(sessions, MOST_HELD_BYTES)
        return most, _Held(max(1, sessions // 2), MOST_HELD_BYTES // 2)

    def release(self, ticket: Ticket, took_s: float | None = None) -> None:
        """The call is over after `took_s` seconds; None: it was refused, so that says nothing."""
        self._tickets.remove(ticket)
        if ticket.cost.computes and took_s is not None:
            self._mean_s += 0.2 * (took_s - self._mean_s)
