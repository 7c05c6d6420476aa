"""One stream of tokens: what it was asked, how far it is, and what it has said."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hearth.backends.contract import (
    Event,
    Finished,
    FinishReason,
    Started,
    Timings,
    Token,
    TokenLogprob,
    Usage,
)
from hearth.backends.engine.sampler import Drawn, Sampler
from hearth.backends.text.detokenizer import StreamDetokenizer
from hearth.backends.text.stops import StopMatcher

Emit = Callable[[Event], None]


class Piece(Protocol):
    """The bytes of a token (`Tokenizer.piece`)."""

    def __call__(self, token_id: int, *, special: bool = False) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends, besides its stop strings."""

    max_tokens: int
    """New tokens at most; already bounded by the context."""
    min_tokens: int
    ignore_eos: bool
    end_ids: frozenset[int]
    """Every end-of-generation token of the model."""

    def banned(self, new_tokens: int) -> frozenset[int]:
        """What may not be drawn after `new_tokens` tokens: the end, before `min_tokens` or with
        `ignore_eos`.
        """
        return self.end_ids if self.ignore_eos or new_tokens < self.min_tokens else frozenset()


@dataclass(slots=True)
class Clock:
    """Moments of one request, from `time.monotonic()`; 0 where it has not happened yet."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


class Sequence:
    """`total` tokens are known (prompt and accepted ones), `computed` of them are in the runner's
    cache.

    The scheduler gives a sequence tokens until `computed` reaches `total`; then the logits of the
    last one are drawn from, which makes `total` one larger. Text leaves through `emit` as soon as
    no stop string can begin in it.
    """

    def __init__(
        self,
        ident: int,
        prompt: list[int],
        sampler: Sampler,
        limits: Limits,
        stops: tuple[str, ...],
        piece: Piece,
        emit: Emit,
        *,
        priority: int = 0,
        notices: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.id = ident
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.computed = 0
        self.cached = 0
        self.slot: int | None = None
        self.priority = priority
        self.limits = limits
        self.sampler = sampler
        self.clock = clock or Clock()
        self.done = False
        self.stop_string: str | None = None
        """The stop string that ended it."""
        self._emit = emit
        self._notices = notices
        self._piece = piece
        self._detokenizer = StreamDetokenizer()
        self._stops = StopMatcher(stops)
        self._held_ids: list[int] = []
        self._held_logprobs: list[TokenLogprob] = []

    @property
    def total(self) -> int:
        return len(self.tokens)

    @property
    def new_tokens(self) -> int:
        return self.total - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """Cells it may come to hold; the last token drawn is never computed."""
        return self.prompt_tokens + self.limits.max_tokens

    def start(self, slot: int, cached: int = 0) -> None:
        """The scheduler admitted it to `slot`, where `cached` prompt tokens are already
        computed.
        """
        self.slot = slot
        self.computed = self.cached = cached
        self.clock.admitted = time.monotonic()
        self._emit(Started(self.prompt_tokens, cached, self._notices))

    def emit(self, event: Event) -> None:
        """Send an event that does not end the stream."""
        self._emit(event)

    def accept(self, drawn: Drawn) -> FinishReason | None:
        """Take a drawn token: say its text, and return why the sequence ends with it, or None."""
        if not self.clock.first_token:
            self.clock.first_token = time.monotonic()
        if drawn.id in self.limits.end_ids:
            self._say("", flush=True)
            return "stop"
        self.sampler.accept(drawn.id)
        self.tokens.append(drawn.id)
        self._held_ids.append(drawn.id)
        if drawn.logprob is not None:
            self._held_logprobs.append(self._logprob(drawn, drawn.logprob))
        text, matched = self._stops.push(self._detokenizer.push(self._piece(drawn.id)))
        if matched is not None:
            self._say(text, flush=True, stopped=True)
            self.stop_string = matched
            return "stop"
        if self.new_tokens >= self.limits.max_tokens:
            self._say(text, flush=True)
            return "stop" if self.stop_string is not None else "length"
        self._say(text)
        return None

    def _say(self, text: str, *, flush: bool = False, stopped: bool = False) -> None:
        if flush and not stopped:
            more, matched = self._stops.push(self._detokenizer.finish())
            text += more
            if matched is None:
                text += self._stops.finish()
            else:
                self.stop_string = matched
        if not text and not (flush and self._held_ids):
            return
        logprobs = tuple(self._held_logprobs) if self._held_logprobs else None
        self._emit(Token(text, tuple(self._held_ids), logprobs))
        self._held_ids.clear()
        self._held_logprobs.clear()

    def _logprob(self, drawn: Drawn, logprob: float) -> TokenLogprob:
        top = tuple((ident, self._text_of(ident), value) for ident, value in drawn.top)
        return TokenLogprob(drawn.id, self._text_of(drawn.id), logprob, top)

    def _text_of(self, ident: int) -> str:
        return self._piece(ident, special=True).decode(errors="replace")

    def end(self, event: Event) -> None:
        """Send the last event of the stream; a second call does nothing."""
        if not self.done:
            self.done = True
            self._emit(event)

    def finish(self, reason: FinishReason) -> None:
        """End the stream well; text still held back is said first."""
        if self.done:
            return
        self.clock.ended = time.monotonic()
        if reason == "cancelled":
            self._say("", flush=True)
        usage = Usage(self.prompt_tokens, self.cached, self.new_tokens)
        self.end(Finished(reason, usage, self._timings(), self.stop_string))

    def _timings(self) -> Timings:
        clock = self.clock
        if not clock.admitted:
            return Timings(queued_s=clock.ended - clock.arrived)
        first = clock.first_token or clock.ended
        prefill_s = first - clock.admitted
        decode_s = clock.ended - first
        computed = self.prompt_tokens - self.cached
        return Timings(
            queued_s=clock.admitted - clock.arrived,
            ttft_s=first - clock.arrived if clock.first_token else 0.0,
            prefill_s=prefill_s,
            decode_s=decode_s,
            prefill_tok_per_s=computed / prefill_s if clock.first_token and prefill_s else 0.0,
            decode_tok_per_s=(self.new_tokens - 1) / decode_s
            if decode_s and self.new_tokens > 1
            else 0.0,
        )
