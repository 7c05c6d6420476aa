"""Room for requests to one model: reserved before any work, so that a flood is refused at the
door.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.backends.contract import Request
from hearth.backends.errors import Busy

MAX_WAITING = 64
"""Requests that may wait for one model, beside those that run."""


def upper_bound_tokens(request: Request) -> int:
    """Most tokens that `request` can hold, before it is tokenized: a token is at least one byte of
    its text.

    With no `max_tokens` only the prompt is counted: how much is generated is bounded by the
    context later.
    """
    size = len(request.token_ids or ())
    size += len((request.text or "").encode(errors="surrogatepass"))
    for message in request.messages or ():
        size += len(message.content.encode(errors="surrogatepass"))
    return size + (request.max_tokens or 0)


@dataclass(slots=True)
class Ticket:
    """One admitted request and what is reserved for it."""

    tokens: int


class Admission:
    """Counts requests and tokens of one model. Not thread-safe: it lives in the host's event
    loop.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max(1, max_sessions)
        self._context: int | None = None
        self._tickets: list[Ticket] = []
        self._mean_s = 1.0

    def opened(self, context: int, max_sessions: int) -> None:
        """The model is loaded with this context and so many sessions: they bound what follows."""
        self._context = context
        self._max_sessions = max_sessions

    def admit(self, request: Request) -> Ticket:
        """Reserve room. Raises `Busy` with `retry_after_s` from how long requests took lately."""
        ticket = Ticket(upper_bound_tokens(request))
        held = sum(other.tokens for other in self._tickets)
        most = self._max_sessions + MAX_WAITING
        full = len(self._tickets) >= most
        if self._context is not None and self._tickets:
            full = full or held + ticket.tokens > self._context * most
        if full:
            turns = 1 + len(self._tickets) / self._max_sessions
            raise Busy(
                f"{len(self._tickets)} requests are running or waiting for this model.",
                f"Try again in about {turns * self._mean_s:.0f} s.",
                retry_after_s=round(turns * self._mean_s, 1),
            )
        self._tickets.append(ticket)
        return ticket

    def counted(self, ticket: Ticket, tokens: int) -> None:
        """The worker has tokenized the request: correct the reservation."""
        ticket.tokens = tokens

    def release(self, ticket: Ticket, took_s: float) -> None:
        """The request is over after `took_s` seconds."""
        self._tickets.remove(ticket)
        self._mean_s += 0.2 * (took_s - self._mean_s)
