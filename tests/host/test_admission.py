"""Admission and breaker: refusals at the door."""

import pytest

from hearth.backends import breaker as breaker_module
from hearth.backends.admission import Admission, Cost, cost
from hearth.backends.breaker import MAX_DEATHS, Breaker
from hearth.backends.contract import Message, Request
from hearth.backends.errors import Busy, WorkerDied
from hearth.backends.wire import (
    ClearCache,
    Detokenize,
    Embed,
    Generate,
    GetStats,
    Load,
    Render,
    Score,
    Tokenize,
)

HELLO = Cost(1, 5)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Generate(Request(text="\N{SEAT}", max_tokens=10)), Cost(1, 4, 10)),
        (Generate(Request(token_ids=(1, 2, 3))), Cost(1, 3)),
        (Generate(Request(messages=(Message("user", "abc"), Message("user", "d")))), Cost(1, 4)),
        (Generate(Request(text="abc", max_tokens=10, n=4)), Cost(4, 3, 40)),
        (Score((1, 2, 3)), Cost(1, 3)),
        (Embed(("ab", "\N{SEAT}"), "mean"), Cost(1, 6)),
        (Tokenize("abc", False), Cost(1, 3, computes=False)),
        (Detokenize((1, 2)), Cost(1, 2, computes=False)),
        (Render(Request(messages=(Message("user", "abc"),))), Cost(1, 3, computes=False)),
        (Load(), None),
        (ClearCache(), None),
        (GetStats(), None),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_a_call_may_take_is_known_before_any_work(call, expected):
    assert cost(call) == expected


def test_slots_and_places_to_wait_are_limited_and_come_back():
    admission = Admission(max_sessions=2, max_waiting=3)
    tickets = [admission.admit(HELLO) for _ in range(5)]
    with pytest.raises(Busy) as refused:
        admission.admit(HELLO)
    assert refused.value.data["retry_after_s"] > 0
    admission.release(tickets[0], took_s=0.1)
    admission.admit(HELLO)


def test_choices_count_as_so_many_sessions_and_come_whole_or_not_at_all():
    admission = Admission(max_sessions=4, max_waiting=0)
    one = admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(Cost(4, 5))
    three = admission.admit(Cost(3, 5))
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.release(three, took_s=0.1)
    admission.release(one, took_s=0.1)
    admission.admit(Cost(16, 5))  # alone, they take turns


def test_the_newest_limit_of_waiting_holds():
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.max_waiting = 1
    admission.admit(HELLO)


def test_tokens_are_limited_once_the_context_is_known_and_corrected_by_the_worker():
    admission = Admission(max_sessions=1, max_waiting=3)
    admission.opened(context=10, max_sessions=1)
    ticket = admission.admit(Cost(1, 36, 4))
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.counted(ticket, prompt_tokens=7)
    admission.admit(HELLO)


def test_a_model_loaded_with_more_sessions_admits_more():
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.opened(context=1000, max_sessions=3)
    admission.admit(HELLO)
    admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)


def test_tickets_of_equal_size_are_not_confused():
    admission = Admission(max_sessions=4, max_waiting=0)
    one, other = admission.admit(HELLO), admission.admit(HELLO)
    admission.release(other, took_s=0.1)
    admission.counted(one, prompt_tokens=2)
    admission.release(one, took_s=0.1)


def test_calls_that_only_prepare_do_not_make_the_wait_look_short():
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.release(admission.admit(HELLO), took_s=100.0)
    for _ in range(50):
        admission.release(admission.admit(Cost(1, 5, computes=False)), took_s=0.0)
    admission.admit(HELLO)
    with pytest.raises(Busy) as refused:
        admission.admit(HELLO)
    assert refused.value.data["retry_after_s"] > 20


def test_the_breaker_opens_after_three_deaths_in_a_row_and_tries_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(breaker_module.time, "monotonic", lambda: now[0])
    breaker = Breaker("m")
    for _ in range(MAX_DEATHS - 1):
        breaker.death()
        breaker.check()
    breaker.step()
    for _ in range(MAX_DEATHS):
        breaker.check()
        breaker.death()
    with pytest.raises(WorkerDied):
        breaker.check()
    now[0] += breaker_module.COOL_DOWN_S
    breaker.check()
    breaker.death()
    with pytest.raises(WorkerDied):
        breaker.check()
