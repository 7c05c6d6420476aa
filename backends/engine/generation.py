"""A sequence that generates: it samples tokens, turns them into text, and decides when to stop."""

from __future__ import annotations

import codecs
import time
from dataclasses import dataclass

from hearth.backends.contract import events
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.logprobs import Piece, named
from hearth.backends.engine.lookahead import Lookahead
from hearth.backends.engine.matcher import Matcher
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sampler import Drawn, Sampler
from hearth.backends.engine.sequence import Clock, Emit, Sequence
from hearth.backends.engine.shortlist import ShortlistSpec
from hearth.backends.engine.streaming import Streaming
from hearth.backends.text.output.parser import OutputParser
from hearth.backends.text.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends, apart from its stop strings."""

    max_tokens: int
    """Maximum number of new tokens; already bounded by the context."""
    min_tokens: int
    """Before this many new tokens, neither an end token nor a stop string ends it. A grammar still
    does where nothing else can follow, and so does `one_call`."""
    ignore_eos: bool
    end_ids: frozenset[int]
    """Every end-of-generation token of the model."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens whose text the output parser must see."""
    one_call: bool = False
    """The sequence also ends after its first tool call."""
    stop_ids: frozenset[int] = frozenset()
    """Further tokens that end the sequence, even with `ignore_eos`."""
    include_stop: bool = False
    """The stop string or the token of `stop_ids` that ends the sequence is part of its text."""
    show_special: bool = False
    """Special tokens, except those of `end_ids`, are part of the text."""

    def banned(self, new_tokens: int) -> frozenset[int]:
        """Tokens that may not be drawn after `new_tokens` tokens: before `min_tokens`, every token
        that ends the sequence; after that, the model's end tokens if `ignore_eos` is set.
        """
        if new_tokens < self.min_tokens:
            return self.end_ids | self.stop_ids
        return self.end_ids - self.stop_ids if self.ignore_eos else frozenset()


class Generation(Sequence):
    """One answer to a prompt. Its text is emitted as soon as no stop string can begin in it.

    Args:
        prompt: token ids, at least one.
        matcher: the grammar that the text must follow; None: free text.
        parser: splits the text into parts; None: all of it is the answer.
        index: which of the request's choices it is.
        notices: for `Started`.
        kept_tokens: for `Usage`.
        pins: (prompt tokens, seconds) pairs: once that many first tokens are computed, they are
            kept until that many seconds after their last use; see `KvManager.pin` for the limits.
        reuse_prefix: False: nothing that other requests computed is used. With several choices, the
            first then computes the whole prompt and the others share it.
        speculating: how its tokens are drafted; None: no drafts.
        streaming: how it continues when the context is full; None: it ends there.
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
        matcher: Matcher | None = None,
        parser: OutputParser | None = None,
        index: int = 0,
        priority: int = 0,
        session: str = "",
        notices: tuple[str, ...] = (),
        kept_tokens: int = 0,
        pins: tuple[tuple[int, float], ...] = (),
        reuse_prefix: bool = True,
        clock: Clock | None = None,
        speculating: Speculating | None = None,
        streaming: Streaming | None = None,
    ) -> None:
        super().__init__(
            ident,
            list(prompt),
            priority=priority,
            session=session,
            clock=clock,
            pins=pins,
            emit=emit,
        )
        self.speculating = speculating
        self.streaming = streaming
        self.limits = limits
        self._banned = limits.banned(limits.min_tokens)
        """Tokens that may not be drawn once there are `min_tokens` new tokens."""
        self.sampler = sampler
        self.index = index
        self.stop_string: str | None = None
        """The stop string that ended it."""
        self._matcher = matcher
        self._parser = parser
        self._notices = notices
        self._kept_tokens = kept_tokens
        self._reuses_prefix = reuse_prefix or index > 0
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        """Holds back a character until its last byte has arrived."""
        self._has_stops = bool(stops)
        self._stops = StopMatcher(stops)
        self._shown = 0
        """Prompt tokens of the last `Progress`; tokens that are recomputed are not reported again.
        """
        self._reasoning_tokens = 0
        self._held_ids: list[int] = []
        self._held_logprobs: list[events.TokenLogprob] = []

    @property
    def session_on_disk(self) -> str:
        return self.session

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def cacheable_tokens(self) -> list[int]:
        return self.tokens if self._reuses_prefix else self.tokens[:1]

    @property
    def most_drafts(self) -> int:
        most = self.limits.max_tokens - self.new_tokens - 1
        if self.streaming is not None:
            most = min(most, self.streaming.most - self.held - 1)
        return most

    def outputs(self, count: int) -> int:
        return int(count == self.pending)

    def on_admitted(self) -> None:
        self._emit(events.Started(self.prompt_tokens, self.cached, self._notices))

    def report_progress(self, computed: int) -> None:
        if self.new_tokens == 0 and computed > self._shown:
            self._shown = computed
            self._emit(events.Progress(computed, self.prompt_tokens))

    def shortlist(self) -> ShortlistSpec | None:
        return self.sampler.shortlist(self.total, self.limits.banned(self.new_tokens))

    def ahead(self) -> Lookahead:
        """A `Lookahead` that draws drafts for this sequence."""
        state, limits, made = self.speculating, self.limits, self.new_tokens
        return Lookahead(
            self.sampler.fork(),
            None if self._matcher is None else self._matcher.copy(),
            self.total,
            lambda drafted: limits.banned(made + drafted),
            limits.end_ids | limits.stop_ids,
            ends_complete=not limits.ignore_eos,
            has_laws=state is not None and state.rule == "rejection" and not self.sampler.is_greedy,
        )

    def take(self, row: Row, result: StepResult) -> events.FinishReason | None:
        """Draw and accept the next token if this step computed the last known one. As long as the
        token drawn is the draft at that place, draw the one after it too. With rejection sampling,
        the draft at a place takes part in the draw there.
        """
        if not self.clock.first_token:
            self.report_progress(self.computed)
        if not row.outputs:
            return None
        place = 0
        while True:
            drawn = self._draw(row, place, result)
            reason = self.accept(drawn)
            if reason is not None or not row.drafts:
                return reason
            place = row.next_place(place, drawn.id)
            if not place:
                return None

    def _draw(self, row: Row, place: int, result: StepResult) -> Drawn:
        """Draw the token after the draft at `place` of `row`; place 0 is the last known token."""
        made = self.new_tokens
        banned = self._banned if made >= self.limits.min_tokens else self.limits.banned(made)
        state = self.speculating
        # Tokens of a tree are not sampled from a law, so rejection sampling does not apply.
        can_reject = place < row.drafts and not row.parents
        if can_reject and state is not None and state.rule == "rejection":
            return self.sampler.verify(
                result.logits[row.slot][place],
                self.total,
                row.tokens[len(row.tokens) - row.drafts + place],
                None if state.laws is None else state.laws[place],
                banned=banned,
                matcher=self._matcher,
            )
        short = result.shortlists.get(row.slot)
        return self.sampler.draw(
            result.logits[row.slot][place] if short is None else short,
            self.total,
            banned=banned,
            matcher=self._matcher,
        )

    def accept(self, drawn: Drawn) -> events.FinishReason | None:
        """Accept a drawn token and emit its text; returns why the sequence ends there, or None."""
        if not self.clock.first_token:
            self.clock.first_token = time.monotonic()
        limits, token = self.limits, drawn.id
        is_stop = token in limits.stop_ids
        if token in limits.end_ids or (is_stop and not limits.include_stop):
            self._emit_text("", flush=True)
            return "stop"
        self.sampler.accept(token)
        if self._matcher is not None:
            self._matcher.accept(token)
        self.tokens.append(token)
        self._held_ids.append(token)
        if drawn.logprob is not None:
            self._held_logprobs.append(named(token, drawn.logprob, drawn.top, self._piece))
        if self._parser is not None and self._parser.channel == "reasoning":
            self._reasoning_tokens += 1
        is_shown = limits.show_special or token in limits.shown_ids
        text, matched = self._decoder.decode(self._piece(token, special=is_shown)), None
        if self._has_stops:
            text, matched = self._push(text)
        if matched is not None:
            self._emit_text(text + self._included(matched), flush=True, stopped=True)
            self.stop_string = matched
            return "stop"
        if is_stop:
            self._emit_text(text, flush=True)
            return "stop"
        if self._matcher is not None and self._matcher.complete and not limits.ignore_eos:
            self._emit_text(text, flush=True)
            return "stop"
        if self.new_tokens >= limits.max_tokens:
            self._emit_text(text, flush=True, cut=True)
            return "stop" if self.stop_string is not None or self._has_its_call else "length"
        self._emit_text(text)
        if limits.one_call and self._has_its_call:
            self._emit_text("", flush=True)
            return "stop"
        return None

    def finish(self, reason: events.FinishReason) -> None:
        """End the stream without error, after emitting the text that is still held back."""
        if self.done:
            return
        self.clock.ended = time.monotonic()
        if reason == "cancelled":
            self._emit_text("", flush=True, cut=True)
        usage = events.Usage(
            self.prompt_tokens,
            self.cached,
            self.new_tokens,
            self._reasoning_tokens,
            max(0, self._kept_tokens - self.cached),
        )
        notices: tuple[str, ...] = () if self._matcher is None else self._matcher.notices
        if self.streaming is not None and (gone := self.streaming.dropped(self.total - 1)):
            notices = (*notices, self.streaming.notice(gone, self.total))
        if self._parser is not None:
            notices = (*notices, *self._parser.notices)
            if reason == "stop" and self._parser.calls:
                reason = "tool_calls"
        self._end(events.Finished(reason, usage, self._timings(), self.stop_string, notices))

    @property
    def _has_its_call(self) -> bool:
        return self.limits.one_call and self._parser is not None and self._parser.calls > 0

    def _emit_text(
        self, text: str, *, flush: bool = False, stopped: bool = False, cut: bool = False
    ) -> None:
        if flush and not stopped:
            more, matched = self._push(self._decoder.decode(b"", final=True))
            text += more
            if matched is None:
                text += self._stops.finish()
            else:
                text += self._included(matched)
                self.stop_string = matched
        if self._parser is None:
            if text or (flush and self._held_ids):
                self._emit_part(events.Token(text))
            return
        parts = self._parser.push(text) if text else []
        if flush:
            parts += self._parser.finish(cut=cut)
        for part in parts:
            self._emit_part(part)
        if flush and self._held_ids:
            self._emit_part(events.Token(""))

    def _included(self, stop: str) -> str:
        """The stop string if it is part of the text, else an empty string."""
        return stop if self.limits.include_stop else ""

    def _push(self, text: str) -> tuple[str, str | None]:
        """The part of `text` that can be shown, and the stop string that ended it, if any."""
        return self._stops.push(text, may_match=self.new_tokens >= self.limits.min_tokens)

    def _emit_part(self, part: events.Part) -> None:
        """Emit `part` with the tokens since the last part."""
        part.ids, part.index = tuple(self._held_ids), self.index
        self._held_ids.clear()
        if self._held_logprobs:
            if isinstance(part, events.Token):
                part.logprobs = tuple(self._held_logprobs)
            self._held_logprobs.clear()
        self._emit(part)

    def _timings(self) -> events.Timings:
        clock = self.clock
        if not clock.admitted:
            return events.Timings(queued_s=clock.ended - clock.arrived)
        first = clock.first_token or clock.ended
        prefill_s = first - clock.admitted
        decode_s = clock.ended - first
        computed = self.prompt_tokens - self.cached
        return events.Timings(
            queued_s=clock.admitted - clock.arrived,
            ttft_s=first - clock.arrived if clock.first_token else 0.0,
            prefill_s=prefill_s,
            decode_s=decode_s,
            prefill_tok_per_s=computed / prefill_s if clock.first_token and prefill_s else 0.0,
            decode_tok_per_s=(self.new_tokens - 1) / decode_s
            if decode_s and self.new_tokens > 1
            else 0.0,
            drafted_tokens=() if self.speculating is None else tuple(self.speculating.drafted),
            accepted_tokens=() if self.speculating is None else tuple(self.speculating.accepted),
        )
