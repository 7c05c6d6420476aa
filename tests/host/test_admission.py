"""Admission and breaker: refusals at the door."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request
from hearth.backends.contract.wire import (
    ClearCache,
    Cost,
    Detokenize,
    Embed,
    Generate,
    GetStats,
    Least,
    Load,
    Rank,
    Render,
    Score,
    Tokenize,
)
from hearth.backends.errors import Busy, PromptTooLong, WorkerDied
from hearth.backends.host import breaker as breaker_module
from hearth.backends.host.admission import MOST_HELD_BYTES, PRESENT_S, Admission, Ticket
from hearth.backends.host.breaker import MAX_DEATHS, Breaker

HELLO = Cost(1, 5)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            Generate(Request(text="\N{SEAT}", max_tokens=10)),
            Cost(1, 4, least=Least("text", nbytes=4)),
        ),
        (Generate(Request(token_ids=(1, 2, 3))), Cost(1, 3, least=Least("token_ids", 3))),
        (
            Generate(
                Request(
                    messages=(
                        Message("user", " abc\n"),
                        Message("assistant", "de", reasoning="fgh"),
                        Message("user", "i"),
                    )
                )
            ),
            Cost(1, 11, least=Least("messages", nbytes=4)),
        ),
        (
            Generate(Request(text="abc", max_tokens=10, n=4)),
            Cost(4, 3, least=Least("text", nbytes=3)),
        ),
        (Generate(Request(text="abc", truncate_prompt_tokens=2)), Cost(1, 3)),
        (Score((1, 2, 3)), Cost(1, 3, least=Least("token_ids", 3))),
        (Embed(("ab", "\N{SEAT}"), "mean"), Cost(1, 6, least=Least("texts[1]", nbytes=4))),
        (Embed(("ab", (1, 2, 3)), "mean"), Cost(1, 5, least=Least("texts[1]", 3))),
        (Embed(("abc",), "mean", truncate=True), Cost(1, 3)),
        (Rank("ab", ("c", "de")), Cost(1, 7, least=Least("texts[1]", nbytes=4))),
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
    assert call.cost() == expected


def test_slots_and_places_to_wait_are_limited_and_come_back():
    admission = Admission(max_sessions=2, max_waiting=3)
    tickets = [admission.admit(HELLO) for _ in range(5)]
    with pytest.raises(Busy) as refused:
        admission.admit(HELLO)
    assert refused.value.data["retry_after_s"] > 0
    admission.release(tickets[0])
    admission.admit(HELLO)


def test_choices_count_as_so_many_sessions_and_come_whole_or_not_at_all():
    admission = Admission(max_sessions=4, max_waiting=0)
    one = admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(Cost(4, 5))
    three = admission.admit(Cost(3, 5))
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.release(three)
    admission.release(one)
    admission.admit(Cost(16, 5))  # alone, they take turns


def test_the_newest_limit_of_waiting_holds():
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.admit(HELLO)
    with pytest.raises(Busy):
        admission.admit(HELLO)
    admission.max_waiting = 1
    admission.admit(HELLO)


def test_long_prompts_reserve_no_more_places_than_short_ones():
    admission = Admission(max_sessions=2, max_waiting=2)
    admission.opened(context=10, max_sessions=2)
    for _ in range(3):
        admission.admit(Cost(1, 2_000_000))
    admission.admit(HELLO)


def test_bodies_are_limited_together():
    admission = Admission(max_sessions=2, max_waiting=6)
    admission.admit(HELLO, nbytes=MOST_HELD_BYTES)
    with pytest.raises(Busy):
        admission.admit(HELLO, nbytes=1)


@pytest.mark.parametrize(
    "least", [Least("text", nbytes=101), Least("token_ids", 11), Least("texts[3]", nbytes=101)]
)
def test_what_cannot_fit_is_refused_with_the_worker_s_error_and_reserves_nothing(least):
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.opened(context=10, max_sessions=1, longest_token_bytes=10)
    for _ in range(3):
        with pytest.raises(PromptTooLong, match="maximum context length is 10 tokens") as refused:
            admission.admit(Cost(1, 500, least=least))
        assert refused.value.data["prompt_tokens"] == 11 and refused.value.param == least.param
    admission.admit(Cost(1, 500, least=Least("text", nbytes=100)))


def test_bytes_say_nothing_where_the_tokenizer_may_shorten_text():
    admission = Admission(max_sessions=1, max_waiting=0)
    admission.opened(context=10, max_sessions=1)
    admission.admit(Cost(1, 5000, least=Least("text", nbytes=5000)))


def test_a_client_that_takes_everything_leaves_half_to_one_that_comes_later():
    admission = Admission(max_sessions=2, max_waiting=6)
    greedy = [admission.admit(HELLO, "greedy") for _ in range(8)]
    modest = [admission.admit(HELLO, "modest") for _ in range(4)]
    with pytest.raises(Busy):
        admission.admit(HELLO, "modest")
    for ticket in greedy[:5]:
        admission.release(ticket)
    admission.admit(HELLO, "greedy")
    with pytest.raises(Busy):
        admission.admit(HELLO, "greedy")
    for ticket in modest:
        admission.release(ticket)


def test_half_stays_free_for_one_that_asks_again_and_again():
    now = 0.0
    admission = Admission(2, 2, clock=lambda: now)
    admission.release(admission.admit(HELLO, "modest"))
    greedy = [admission.admit(HELLO, "greedy") for _ in range(2)]
    with pytest.raises(Busy):
        admission.admit(HELLO, "greedy")
    now = PRESENT_S + 0.1
    greedy += [admission.admit(HELLO, "greedy") for _ in range(2)]
    assert len(greedy) == 4


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_whatever_comes_one_identity_has_half_and_none_is_shut_out(data):
    """Limits hold, an identity gets at most half while others ask, one that holds less than its
    share is admitted, and everything is free again when all tickets are released.
    """
    sessions, waiting = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 8))
    now = 0.0
    admission = Admission(sessions, waiting, clock=lambda: now)
    admission.opened(context=100, max_sessions=sessions)
    most = sessions + waiting
    half = max(1, most // 2)
    tickets: list[tuple[str, Ticket]] = []

    def held(identity):
        return sum(each.cost.sessions for name, each in tickets if name == identity)

    for _ in range(data.draw(st.integers(1, 60))):
        now += data.draw(st.sampled_from([0.0, 0.5, PRESENT_S + 1]))
        if tickets and data.draw(st.booleans()):
            _, ticket = tickets.pop(data.draw(st.integers(0, len(tickets) - 1)))
            admission.release(ticket)
            continue
        identity = data.draw(st.sampled_from("abc"))
        others = {name for name, _ in tickets if name != identity}
        before = held(identity)
        try:
            ticket = admission.admit(Cost(1, data.draw(st.integers(1, 99))), identity)
        except Busy as error:
            refusal = error
        else:
            assert not (others and before) or before + 1 <= half
            tickets.append((identity, ticket))
            assert sum(each.cost.sessions for _, each in tickets) <= 2 * most - half
            continue
        assert tickets and refusal.data["retry_after_s"] >= 1
        shares = sum(min(held(name), half) for name in others)
        assert before >= half or shares + before + 1 > most
    for _, ticket in tickets:
        admission.release(ticket)
    now += PRESENT_S + 1
    for _ in range(most):
        admission.admit(HELLO, "alone")


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
    admission.release(other)
    admission.release(one)


def test_calls_that_only_prepare_do_not_make_the_wait_look_short():
    admission = Admission(max_sessions=1, max_waiting=0)
    slow = admission.admit(HELLO)
    admission.release(slow, took_s=100.0)
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
