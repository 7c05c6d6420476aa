"""Room for calls to one model: reserved before any work, so that a flood is refused at the door."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hearth.backends.contract import Request
from hearth.backends.errors import Busy
from hearth.backends.wire import Call, Detokenize, Embed, Generate, Rank, Render, Score, Tokenize


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call may come to take, before any of it is tokenized."""

    sessions: int
    """How many sequences it makes; a call that only prepares something counts as one too."""
    prompt_tokens: int
    """An upper bound: a token is at least one byte of its text."""
    new_tokens: int = 0
    """Of all its sequences together; 0 if nobody said, then the context bounds them later."""
    computes: bool = True
    """The model works for it, so how long it takes says how long others must wait."""


def cost(call: Call) -> Cost | None:
    """What `call` may take; None if it needs no room: it costs neither model work nor
    preparation.
    """
    match call:
        case Generate(request):
            return Cost(request.n, _prompt_bytes(request), request.n * (request.max_tokens or 0))
        case Score():
            return Cost(1, len(call.ids))
        case Embed():
            return Cost(1, sum(_size(text) for text in call.texts))
        case Rank():
            return Cost(1, _size(call.query) * len(call.texts) + _bytes(call.texts))
        case Tokenize():
            return Cost(1, _bytes([call.text]), computes=False)
        case Detokenize():
            return Cost(1, len(call.ids), computes=False)
        case Render(request):
            return Cost(1, _prompt_bytes(request), computes=False)
        case _:
            return None


def _prompt_bytes(request: Request) -> int:
    """Bytes of its text, or its number of token ids."""
    texts = [request.text or "", request.suffix or ""]
    for message in request.messages or ():
        texts += (message.content, message.reasoning)
        texts += (call.arguments for call in message.tool_calls)
    texts += (f"{tool.description}{tool.parameters}" for tool in request.tools)
    return len(request.token_ids or ()) + _bytes(texts)


def _size(text: str | tuple[int, ...]) -> int:
    return _bytes([text]) if isinstance(text, str) else len(text)


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


@dataclass(slots=True, eq=False)
class Ticket:
    """One admitted call and what is reserved for it."""

    cost: Cost
    tokens: int


class Admission:
    """Counts the sessions and tokens of the calls to one model. Not thread-safe: it lives in the
    host's event loop, and a call is admitted as a whole or not at all.

    Args:
        max_sessions: sequences that run at the same time.
        max_waiting: how many more may wait; may be set anew at any time.
    """

    def __init__(self, max_sessions: int, max_waiting: int) -> None:
        self._max_sessions = max(1, max_sessions)
        self.max_waiting = max_waiting
        self._context: int | None = None
        self._tickets: list[Ticket] = []
        self._mean_s = 1.0

    def opened(self, context: int, max_sessions: int) -> None:
        """The model is loaded with this context and so many sessions: they bound what follows."""
        self._context = context
        self._max_sessions = max_sessions

    def admit(self, cost: Cost) -> Ticket:
        """Reserve room. A call that comes alone is always admitted: the worker decides whether it
        fits.

        Raises:
            Busy: with `retry_after_s` from how long calls took lately.
        """
        ticket = Ticket(cost, cost.prompt_tokens + cost.new_tokens)
        if self._tickets and self._full(ticket):
            sessions = self._sessions()
            turns = 1 + sessions / self._max_sessions
            raise Busy(
                f"{sessions} requests are running or waiting for this model.",
                f"Try again in about {turns * self._mean_s:.0f} s.",
                retry_after_s=round(turns * self._mean_s, 1),
            )
        self._tickets.append(ticket)
        return ticket

    def _full(self, ticket: Ticket) -> bool:
        most = self._max_sessions + max(0, self.max_waiting)
        if self._sessions() + ticket.cost.sessions > most:
            return True
        held = sum(other.tokens for other in self._tickets)
        return self._context is not None and held + ticket.tokens > self._context * most

    def _sessions(self) -> int:
        return sum(ticket.cost.sessions for ticket in self._tickets)

    def counted(self, ticket: Ticket, prompt_tokens: int) -> None:
        """The worker has tokenized the request: correct the reservation."""
        ticket.tokens = prompt_tokens + ticket.cost.new_tokens

    def release(self, ticket: Ticket, took_s: float) -> None:
        """The call is over after `took_s` seconds."""
        self._tickets.remove(ticket)
        if ticket.cost.computes:
            self._mean_s += 0.2 * (took_s - self._mean_s)
