"""Admission and breaker: refusals at the door."""

import pytest

from hearth.backends import breaker as breaker_module
from hearth.backends.admission import MAX_WAITING, Admission, upper_bound_tokens
from hearth.backends.breaker import MAX_DEATHS, Breaker
from hearth.backends.contract import Message, Request
from hearth.backends.errors import Busy, WorkerDied

HELLO = Request(text="hello")


def test_the_upper_bound_counts_bytes_and_new_tokens():
    assert upper_bound_tokens(Request(text="\N{SEAT}", max_tokens=10)) == 14
    assert upper_bound_tokens(Request(token_ids=(1, 2, 3))) == 3
    assert upper_bound_tokens(Request(messages=(Message("user", "abc"), Message("user", "d")))) == 4


def test_slots_are_limited_and_come_back():
    admission = Admission(max_sessions=2)
    tickets = [admission.admit(HELLO) for _ in range(2 + MAX_WAITING)]
    with pytest.raises(Busy) as refused:
        admission.admit(HELLO)
    assert refused.value.data["retry_after_s"] > 0
    admission.release(tickets[0], took_s=0.1)
    admission.admit(HELLO)


def test_tokens_are_limited_once_the_context_is_known_and_corrected_by_the_worker():
    admission = Admission(max_sessions=1)
    admission.opened(context=10, max_sessions=1)
    big = Request(text="x" * 10 * (1 + MAX_WAITING))
    ticket = admission.admit(big)
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.counted(ticket, 7)
    admission.admit(HELLO)


def test_a_model_loaded_with_more_sessions_admits_more():
    admission = Admission(max_sessions=1)
    for _ in range(1 + MAX_WAITING):
        admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.opened(context=1000, max_sessions=3)
    admission.admit(HELLO)
    admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)


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
