"""Several answers to one prompt, as one stream of events."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import zip_longest

from hearth.backends.contract import events
from hearth.backends.engine.sequence import Emit


class ChoiceGroup:
    """Merges the events of `count` generations into one stream: one `Started`, the progress of the
    first choice, every token, a `ChoiceFinished` for each choice, and one `Finished` or `Failed`.

    The prompt counts once. Prompt tokens that later choices find in the cache save the request
    nothing, so `cached_tokens` and `kept_tokens` are those of the first choice. Generated tokens
    are summed over all choices.
    """

    def __init__(self, emit: Emit, count: int) -> None:
        self._emit = emit
        self._started = False
        self._over = False
        self._finished: list[events.Finished | None] = [None] * count

    def emitter(self, index: int) -> Emit:
        """The function to which choice `index` sends its events."""
        return partial(self._take, index)

    def _take(self, index: int, event: events.Event) -> None:
        if self._over:
            return
        if isinstance(event, events.Started):
            if self._started:
                return
            self._started = True
        elif isinstance(event, events.Progress):
            if index:
                return
        elif isinstance(event, events.Failed):
            self._over = True
        elif isinstance(event, events.Finished):
            self._finished[index] = event
            self._emit(events.ChoiceFinished(index, event.reason, event.stop))
            self._end_if_complete()
            return
        self._emit(event)

    def _end_if_complete(self) -> None:
        done = [event for event in self._finished if event is not None]
        if len(done) < len(self._finished):
            return
        self._over = True
        new_tokens = sum(event.usage.completion_tokens for event in done)
        usage = replace(
            done[0].usage,
            completion_tokens=new_tokens,
            reasoning_tokens=sum(event.usage.reasoning_tokens for event in done),
        )
        notices = tuple(dict.fromkeys(notice for event in done for notice in event.notices))
        timings = _together(done, new_tokens)
        self._emit(replace(done[0], usage=usage, timings=timings, notices=notices))


def _together(done: list[events.Finished], new_tokens: int) -> events.Timings:
    """The timings of the first choice, with a decode time that lasts until the last one ended."""
    first = done[0].timings
    begun = first.queued_s + first.prefill_s
    ended = max(
        event.timings.queued_s + event.timings.prefill_s + event.timings.decode_s for event in done
    )
    decode_s = max(0.0, ended - begun)
    counted = new_tokens - 1
    speed = counted / decode_s if decode_s and counted > 0 else 0.0
    return replace(
        first,
        decode_s=decode_s,
        decode_tok_per_s=speed,
        drafted_tokens=_summed([event.timings.drafted_tokens for event in done]),
        accepted_tokens=_summed([event.timings.accepted_tokens for event in done]),
    )


def _summed(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
