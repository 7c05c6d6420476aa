"""Counters and timings of a server, with a clock that the test controls."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import counting
from hearth.app.server.metrics import Histogram, Metrics, Rate
from hearth.backends.contract.events import (
    ChoiceFinished,
    Failed,
    Finished,
    Progress,
    Started,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.errors import ErrorInfo

CHAT = "/v1/chat/completions"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock) -> Metrics:
    return Metrics(clock)


def only(metrics):
    [series] = metrics.series()
    return series


def test_a_stream_is_timed_from_token_to_token(metrics, clock) -> None:
    recorder = metrics.begin(CHAT, "tiny")
    count = counting(recorder)
    for after_s, event in (
        (0.1, Started(7, 3)),
        (0.1, Progress(4, 4)),
        (0.3, Token("a", (1,))),
        (0.02, Token("b", (2,))),
        (0.06, ToolCallPart(0, "call", "f", "", (3, 4, 5))),
        (0.5, Token("held back", ())),
        (0.0, ChoiceFinished(0, "stop")),
        (0.02, Finished("stop", Usage(7, 3, 6))),
    ):
        clock.now_s += after_s
        count(event)
    recorder.end(200)
    series = only(metrics)
    assert (series.route, series.model, series.requests) == (CHAT, "tiny", 1)
    assert (series.prompt_tokens, series.cached_tokens, series.generated_tokens) == (7, 3, 6)
    assert (series.ttft.count, series.inter_token.count, series.latency.count) == (1, 4, 1)
    assert series.ttft.sum_s == pytest.approx(0.5)
    assert series.inter_token.sum_s == pytest.approx(0.08)
    assert series.inter_token.percentile(50) == pytest.approx(0.02, rel=0.026)
    assert series.latency.sum_s == pytest.approx(1.1)


def test_choices_are_timed_apart(metrics, clock) -> None:
    recorder = metrics.begin(CHAT, "tiny")
    count = counting(recorder)
    for index in (0, 1, 0, 1):
        clock.now_s += 0.25
        count(Token("a", (1,), None, index))
    series = only(metrics)
    assert (series.ttft.count, series.ttft.sum_s) == (1, pytest.approx(0.25))
    assert (series.inter_token.count, series.inter_token.sum_s) == (2, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        (200, {"requests": 1}),
        (400, {"requests": 1}),
        (429, {"requests": 1, "refused": 1}),
        (499, {"requests": 1, "cancelled": 1}),
        (503, {"requests": 1, "failed": 1}),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_each_end_is_counted_once(metrics, status, counted, begun) -> None:
    if begun:
        recorder = metrics.begin(CHAT, "tiny")
        assert metrics.running == 1
        recorder.end(status)
        recorder.end(500)
    else:
        metrics.answered(CHAT, status)
    series = only(metrics)
    names = ("requests", "refused", "cancelled", "failed")
    assert {name: n for name in names if (n := getattr(series, name))} == counted
    assert series.statuses == {f"{status // 100}xx": 1}
    assert series.latency.count == (status == 200 and begun)
    assert metrics.running == 0


def test_what_a_broken_stream_used_is_counted(metrics) -> None:
    recorder = metrics.begin(CHAT, "tiny")
    count = counting(recorder)
    count(Started(7, 3))
    count(Token("a", (1, 2)))
    count(Failed(ErrorInfo("worker_died", "It died.")))
    recorder.end(503)
    series = only(metrics)
    assert (series.prompt_tokens, series.cached_tokens, series.generated_tokens) == (7, 3, 2)


def test_calls_that_are_no_streams_say_what_they_used(metrics) -> None:
    recorder = metrics.begin("/v1/embeddings", "tiny")
    recorder.prompt(12)
    recorder.end(200)
    assert (only(metrics).prompt_tokens, only(metrics).generated_tokens) == (12, 0)


def test_routes_and_models_are_counted_apart_and_together(metrics) -> None:
    for route, model in ((CHAT, "a"), (CHAT, "b"), ("/v1/completions", "a"), (CHAT, "a")):
        recorder = metrics.begin(route, model)
        count = counting(recorder)
        count(Token("a", (1,)))
        recorder.end(200)
    found = {(series.route, series.model): series.requests for series in metrics.series()}
    assert found == {(CHAT, "a"): 2, (CHAT, "b"): 1, ("/v1/completions", "a"): 1}
    total = metrics.total()
    assert (total.requests, total.generated_tokens, total.ttft.count) == (4, 4, 4)
    assert total.statuses == {"2xx": 4}


def test_labels_do_not_grow_without_end(metrics) -> None:
    for number in range(3000):
        metrics.begin(CHAT, f"model {number}").end(200)
    assert len(list(metrics.series())) < 600
    assert metrics.total().requests == 3000


def test_rates_are_those_of_the_last_minute(metrics, clock) -> None:
    assert (metrics.requests_per_s, metrics.tokens_per_s) == (0.0, 0.0)
    clock.now_s += 10.0
    for _ in range(5):
        recorder = metrics.begin(CHAT, "tiny")
        count = counting(recorder)
        count(Token("a", tuple(range(20))))
        recorder.end(200)
    assert (metrics.requests_per_s, metrics.tokens_per_s) == (0.5, 10.0)
    clock.now_s += 40.0
    assert (metrics.requests_per_s, metrics.tokens_per_s) == (0.1, 2.0)
    clock.now_s += 60.0
    assert (metrics.requests_per_s, metrics.tokens_per_s) == (0.0, 0.0)
    assert metrics.uptime_s == 110.0


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.integers(1, 9)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_rate_counts_exactly_the_seconds_of_its_window(steps) -> None:
    rate, now_s = Rate(0.0), 0.0
    times = [0.0, *accumulate(after_s for after_s, _ in steps)][1:]
    for now_s, (_, events) in zip(times, steps, strict=True):
        rate.add(now_s, events)
    first = int(now_s) - 59
    held = sum(n for at_s, (_, n) in zip(times, steps, strict=True) if int(at_s) >= first)
    assert rate.per_s(now_s) == pytest.approx(held / max(1.0, now_s - max(0, first)))


@given(st.lists(st.floats(1e-5, 9e3), min_size=1, max_size=200), st.integers(1, 100))
@settings(max_examples=200, deadline=None)
def test_percentiles_are_within_a_fortieth(values, percent) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    exact = sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.025)
    assert histogram.mean_s == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e-5, 1.0, 1e4, 1e9])
def test_no_duration_is_too_short_or_too_long(value) -> None:
    histogram = Histogram()
    histogram.observe(value, times=3)
    assert histogram.percentile(50) == pytest.approx(value)
    assert (histogram.count, histogram.sum_s) == (3, pytest.approx(3 * value))


def test_nothing_has_no_percentile() -> None:
    assert Histogram().percentile(50) is None and Histogram().mean_s is None


def test_merging_is_counting_together() -> None:
    draw = random.Random(7)
    one, other, both = Histogram(), Histogram(), Histogram()
    for _ in range(500):
        value = draw.lognormvariate(-3, 2)
        draw.choice((one, other)).observe(value)
        both.observe(value)
    one.merge(other)
    assert one.cumulative() == both.cumulative()
    assert [one.percentile(p) for p in (1, 50, 99)] == [both.percentile(p) for p in (1, 50, 99)]


def test_published_buckets_hold_what_does_not_exceed_their_edge() -> None:
    histogram = Histogram()
    for value in (0.0005, 0.001, 0.0011, 0.25, 500.0, 501.0):
        histogram.observe(value)
    buckets = dict(histogram.cumulative())
    expected = {0.001: 2, 0.0025: 3, 0.1: 3, 0.25: 4, 250.0: 4, 500.0: 5}
    assert {edge: buckets[edge] for edge in expected} == expected
