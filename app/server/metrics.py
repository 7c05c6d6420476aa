"""What one server measures of its own requests: how many, how long, how many tokens."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from hearth.app.server.histogram import Histogram
from hearth.app.server.rate import Rate
from hearth.backends.contract import Event, Finished, Started, Token, ToolCallPart, Usage

_MOST_SERIES: Final = 512
"""Pairs of route and model that are counted apart; further models are counted under ""."""
_SAYS: Final = (Token, ToolCallPart)


@dataclass(slots=True)
class Series:
    """What is counted of the requests of one route for one model."""

    route: str
    model: str
    statuses: Counter[str] = field(default_factory=Counter)
    """How many ended so, by class: "2xx"."""
    refused: int = 0
    """There was no room (429)."""
    cancelled: int = 0
    """Whoever asked left (499)."""
    failed: int = 0
    """From 500 on."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompts': those that were found and not computed."""
    generated_tokens: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """From the request's arrival to its end, of those that went well."""
    ttft: Histogram = field(default_factory=Histogram)
    """From the request's arrival to its first token."""
    inter_token: Histogram = field(default_factory=Histogram)
    """From one token of an answer to the next; tokens that come together share the time."""

    @property
    def requests(self) -> int:
        """How many have ended."""
        return self.statuses.total()

    def merge(self, other: Series) -> None:
        """Count what `other` has counted."""
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
    """Measures one request. `Metrics.begin` makes it."""

    __slots__ = ("_began_s", "_last_s", "_metrics", "_said", "_series", "_used", "status")

    def __init__(self, metrics: Metrics, series: Series, began_s: float) -> None:
        self._metrics = metrics
        self._series = series
        self._began_s = began_s
        self._last_s: dict[tuple[int, int], float] = {}
        """When each choice of each part said its last token."""
        self._said: defaultdict[int, int] = defaultdict(int)
        """Tokens that the events of each part have brought."""
        self._used: dict[int, Usage] = {}
        """What is counted already of each part."""
        self.status = 0
        """What it ended with; 0: it has not."""

    @property
    def facts(self) -> dict[str, str | int]:
        """Its model, and how many tokens it has used by now."""
        return {
            "model": self._series.model,
            "prompt_tokens": sum(usage.prompt_tokens for usage in self._used.values()),
            "generated_tokens": sum(self._said.values()),
        }

    def event(self, event: Event, part: int = 0) -> None:
        """Count what `event` brings; of a request of several prompts, each is a part."""
        if isinstance(event, _SAYS):
            if event.ids:
                self._tokens(len(event.ids), part, event.index)
        elif isinstance(event, Started):
            self.used(Usage(event.prompt_tokens, event.cached_tokens, self._said[part]), part)
        elif isinstance(event, Finished):
            self.used(event.usage, part)

    def _tokens(self, count: int, part: int, index: int) -> None:
        choice = part, index
        now_s = self._metrics.clock()
        before_s = self._last_s.get(choice)
        if before_s is not None:
            self._series.inter_token.observe((now_s - before_s) / count, count)
        elif not self._last_s:
            self._series.ttft.observe(now_s - self._began_s)
        self._last_s[choice] = now_s
        self._said[part] += count
        self._series.generated_tokens += count
        self._metrics.generated.add(now_s, count)

    def used(self, usage: Usage, part: int = 0) -> None:
        """A part has used `usage` by now. The last one, for calls that are no streams."""
        series, counted = self._series, self._used.get(part, Usage())
        series.prompt_tokens += usage.prompt_tokens - counted.prompt_tokens
        series.cached_tokens += usage.cached_tokens - counted.cached_tokens
        unseen = usage.completion_tokens - self._said[part]  # Such as those of a cut call.
        if unseen > 0:
            self._said[part] += unseen
            series.generated_tokens += unseen
            self._metrics.generated.add(self._metrics.clock(), unseen)
        self._used[part] = usage

    def end(self, status: int) -> None:
        """Ended with this HTTP status; 499: whoever asked has left. Only the first call counts."""
        if self.status:
            return
        self.status = status
        self._metrics.running -= 1
        now_s = self._metrics.count(self._series, status)
        if status < 400:
            self._series.latency.observe(now_s - self._began_s)


class Metrics:
    """One server's. Lives in one event loop.

    Args:
        clock: seconds that never go back.

    Attributes:
        running: requests that have begun and not ended.
        ended: requests that ended.
        generated: tokens that were generated.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.running = 0
        self._started_s = clock()
        self.ended = Rate(self._started_s)
        self.generated = Rate(self._started_s)
        self._series: dict[tuple[str, str], Series] = {}

    def begin(self, route: str, model: str = "") -> Recorder:
        """Measure a request from now on; the caller promises `Recorder.end`.

        Args:
            route: as it is served, such as "/v1/chat/completions", never the text of a request.
            model: the name that the catalog has for it, never the text of a request.
        """
        self.running += 1
        return Recorder(self, self._of(route, model), self.clock())

    def answered(self, route: str, status: int, model: str = "") -> None:
        """Count a request that was answered and had nothing to be measured, or was refused before
        it began.
        """
        self.count(self._of(route, model), status)

    def count(self, series: Series, status: int) -> float:
        """Count a request of `series` that ended with `status`; returns what the clock says."""
        now_s = self.clock()
        self.ended.add(now_s, 1)
        series.statuses[f"{status // 100}xx"] += 1
        series.refused += status == 429
        series.cancelled += status == 499
        series.failed += status >= 500
        return now_s

    @property
    def uptime_s(self) -> float:
        """Since when all this is counted."""
        return self.clock() - self._started_s

    @property
    def requests_per_s(self) -> float:
        """Requests that ended in the last minute."""
        return self.ended.per_s(self.clock())

    @property
    def tokens_per_s(self) -> float:
        """Tokens that were generated in the last minute, of all requests together."""
        return self.generated.per_s(self.clock())

    def series(self) -> Iterable[Series]:
        """Each pair of route and model that was asked for."""
        return self._series.values()

    def total(self) -> Series:
        """All together."""
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
