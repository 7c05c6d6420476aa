"""Measurements of a server's requests: counts, durations, tokens."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from hearth.app.answer import Answer, total_usage
from hearth.backends.contract.events import Event, Finished, Started, Token, ToolCallPart

_MOST_SERIES: Final = 512
"""Pairs of route and model with their own counts; further models are counted under ""."""
WINDOW_S: Final = 60
_STEP: Final = 1.05
"""Maximum ratio of a bucket's edges; its geometric mean is within 2.5 % of each value in it."""
_DECADES: Final = range(-5, 4)
"""From 10 µs to 10,000 s; shorter and longer durations go to the first and last bucket."""
_NICE: Final = tuple(float(f"{lead}e{n}") for n in _DECADES for lead in ("1", "2.5", "5"))


def _edges() -> Iterator[float]:
    """The upper edges of buckets: `_NICE`, and as many between each two as `_STEP` requires."""
    for lower, upper in pairwise((*_NICE, 10.0**_DECADES.stop)):
        parts = math.ceil(math.log(upper / lower) / math.log(_STEP))
        yield lower
        yield from (lower * (upper / lower) ** (part / parts) for part in range(1, parts))


_EDGES: Final = tuple(_edges())
_PUBLISHED: Final = tuple((edge, _EDGES.index(edge)) for edge in _NICE if 0.001 <= edge <= 500.0)


@dataclass(slots=True)
class Histogram:
    """Durations in seconds: count, sum, and any percentile to within 2.5 % (10 µs to 10,000 s)."""

    count: int = 0
    sum_s: float = 0.0
    _counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))
    _least_s: float = math.inf
    _most_s: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `seconds`, `times` times."""
        self._counts[bisect_left(_EDGES, seconds)] += times
        self.count += times
        self.sum_s += seconds * times
        if seconds < self._least_s:
            self._least_s = seconds
        if seconds > self._most_s:
            self._most_s = seconds

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        self._counts = [
            ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)
        ]
        self._least_s = min(self._least_s, other._least_s)
        self._most_s = max(self._most_s, other._most_s)
        self.count += other.count
        self.sum_s += other.sum_s

    @property
    def mean_s(self) -> float | None:
        """The mean; None if nothing was counted."""
        return self.sum_s / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` of all values do not exceed (nearest rank); None without any."""
        if not self.count:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        bucket = next(at for at, seen in enumerate(accumulate(self._counts)) if seen >= rank)
        lower = _EDGES[max(0, bucket - 1)]
        upper = _EDGES[min(bucket, len(_EDGES) - 1)]
        return min(max(math.sqrt(lower * upper), self._least_s), self._most_s)

    def cumulative(self) -> list[tuple[float, int]]:
        """(edge in seconds, count of durations up to it), from 1 ms to 500 s."""
        seen = list(accumulate(self._counts))
        return [(edge, seen[at]) for edge, at in _PUBLISHED]


class Rate:
    """Events per second over the last minute, or since `started_s` if that is less.

    Args:
        started_s: the current time of a monotonic clock; later times must be from the same clock.
    """

    __slots__ = ("_by_second", "_started_s")

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._by_second: dict[int, int] = {}

    def add(self, now_s: float, events: int) -> None:
        """Count `events`."""
        now = int(now_s)
        if now in self._by_second:
            self._by_second[now] += events
            return
        self._by_second[now] = events
        for second in [second for second in self._by_second if second <= now - WINDOW_S]:
            del self._by_second[second]

    def per_s(self, now_s: float) -> float:
        """Events per second; a span of less than one second counts as one second."""
        first = int(now_s) - WINDOW_S + 1
        events = sum(count for second, count in self._by_second.items() if second >= first)
        return events / max(1.0, now_s - max(self._started_s, float(first)))


@dataclass(slots=True)
class Series:
    """Counts of the requests of one route for one model."""

    route: str
    model: str
    statuses: Counter[str] = field(default_factory=Counter)
    """Number of requests by class of status, such as "2xx"."""
    refused: int = 0
    """Requests refused because too many were waiting (429)."""
    cancelled: int = 0
    """Requests whose client disconnected (499)."""
    failed: int = 0
    """Requests that ended with status 500 or above."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from the cache."""
    generated_tokens: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """From the request's arrival to its end, of successful requests."""
    ttft: Histogram = field(default_factory=Histogram)
    """From the request's arrival to its first token."""
    inter_token: Histogram = field(default_factory=Histogram)
    """From one token of an answer to the next; tokens of one event share its time."""

    @property
    def requests(self) -> int:
        """Number of requests that have ended."""
        return self.statuses.total()

    def merge(self, other: Series) -> None:
        """Add the counts of `other`."""
        self.statuses += other.statuses
        self.refused += other.refused
        self.cancelled += other.cancelled
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.latency.merge(other.latency)
        self.ttft.merge(other.ttft)
        self.inter_token.merge(other.inter_token)


class Recorder:
    """Measures one request; created by `Metrics.begin`."""

    __slots__ = (
        "_answers",
        "_began_s",
        "_left",
        "_metrics",
        "_prompt_tokens",
        "_series",
        "clock",
        "status",
    )

    def __init__(self, metrics: Metrics, series: Series, began_s: float, parts: int) -> None:
        self._metrics = metrics
        self.clock = metrics.clock
        self._series = series
        self._began_s = began_s
        self._left = parts
        self._answers: dict[int, Answer] = {}
        """The answers with generated tokens, by position."""
        self._prompt_tokens = 0
        self.status = 0
        """HTTP status that the request ended with; 0 if it has not ended."""

    @property
    def facts(self) -> dict[str, str | int]:
        """The request's model, and the tokens that it has used so far."""
        return {
            "model": self._series.model,
            "prompt_tokens": self._prompt_tokens,
            "generated_tokens": total_usage(self._answers.values()).completion_tokens,
        }

    def event(self, answer: Answer, event: Event) -> None:
        """Count the tokens of `event`, which `answer` contains already."""
        if isinstance(event, (Token, ToolCallPart)):
            if event.ids:
                gap_s, count = answer.choices[event.index].gap_s, len(event.ids)
                if gap_s is not None:
                    self._series.inter_token.observe(gap_s / count, count)
                else:
                    if not self._answers:
                        self._series.ttft.observe(answer.last_s - self._began_s)
                    self._answers[answer.position] = answer
                self._series.generated_tokens += count
                self._metrics.generated.add(answer.last_s, count)
        elif isinstance(event, Started):
            self.prompt(event.prompt_tokens, event.cached_tokens)
        elif isinstance(event, Finished):
            begun, usage = answer.started, event.usage
            self.prompt(
                usage.prompt_tokens - begun.prompt_tokens,
                usage.cached_tokens - begun.cached_tokens,
            )
            # Tokens that were in no event, e.g. those of a tool call that was cut off.
            unseen = usage.completion_tokens - answer.tokens
            if unseen > 0:
                self._answers[answer.position] = answer
                self._series.generated_tokens += unseen
                self._metrics.generated.add(self.clock(), unseen)

    def prompt(self, tokens: int, cached_tokens: int = 0) -> None:
        """Count more prompt tokens. Requests without events call it once."""
        self._prompt_tokens += tokens
        self._series.prompt_tokens += tokens
        self._series.cached_tokens += cached_tokens

    def finish_one(self) -> None:
        """Count one part of the request as complete; the last one ends it with status 200."""
        self._left -= 1
        if not self._left:
            self.end(200)

    def end(self, status: int) -> None:
        """Record the end with this HTTP status, 499 if the client disconnected.

        Only the first call has an effect.
        """
        if self.status:
            return
        self.status = status
        self._metrics.running -= 1
        now_s = self._metrics.count(self._series, status)
        if status < 400:
            self._series.latency.observe(now_s - self._began_s)


class Metrics:
    """The measurements of one server; used in one event loop.

    Args:
        clock: a monotonic clock in seconds.

    Attributes:
        running: number of running requests.
        ended: rate of requests that ended.
        generated: rate of generated tokens.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.running = 0
        self._started_s = clock()
        self.ended = Rate(self._started_s)
        self.generated = Rate(self._started_s)
        self._series: dict[tuple[str, str], Series] = {}

    def begin(self, route: str, model: str = "", parts: int = 1) -> Recorder:
        """Start measuring a request; the caller must call `Recorder.end`.

        Args:
            route: path of the endpoint, such as "/v1/chat/completions"; never text of a request.
            model: the model's name in the catalog; never text of a request.
            parts: number of requests of the backend that it consists of.
        """
        self.running += 1
        return Recorder(self, self._of(route, model), self.clock(), parts)

    def answered(self, route: str, status: int) -> None:
        """Count a request without tokens, or one that was refused before it began."""
        self.count(self._of(route, ""), status)

    def count(self, series: Series, status: int) -> float:
        """Count a request of `series` that ended with `status`; returns the clock's time."""
        now_s = self.clock()
        self.ended.add(now_s, 1)
        series.statuses[f"{status // 100}xx"] += 1
        series.refused += status == 429
        series.cancelled += status == 499
        series.failed += status >= 500
        return now_s

    @property
    def uptime_s(self) -> float:
        """Seconds since counting began."""
        return self.clock() - self._started_s

    @property
    def requests_per_s(self) -> float:
        """Mean rate of requests that ended, in the last minute."""
        return self.ended.per_s(self.clock())

    @property
    def tokens_per_s(self) -> float:
        """Mean rate of generated tokens of all requests, in the last minute."""
        return self.generated.per_s(self.clock())

    def series(self) -> Iterable[Series]:
        """The counts of each pair of route and model."""
        return self._series.values()

    def total(self) -> Series:
        """The sum of all series."""
        total = Series("", "")
        for series in self._series.values():
            total.merge(series)
        return total

    def _of(self, route: str, model: str) -> Series:
        key = route, model
        if key not in self._series:
            if len(self._series) >= _MOST_SERIES:
                key = route, ""
            self._series.setdefault(key, Series(*key))
        return self._series[key]
