"""Groups of layers with a window in the paged memory: what they hold, and what a hit needs."""

from __future__ import annotations

import pytest

from drafting import drafting_engine
from fake_pages import FakePagedRunner, PagedMemory
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.errors import InternalError
from speakers import at_rest, drain, generation

PREFIX = list(range(100, 120))


def test_blocks_that_a_window_has_passed_are_free():
    memory = PagedMemory(page=4, windows=(None, 8))
    memory.run(0, list(range(60)))
    assert (memory.blocks(0), memory.blocks(1)) == (15, 2)
    table = memory.cache.handle(0)[1]
    assert list(table[:13]) == [-1] * 13 and min(table[13:]) >= 0


def test_a_hit_needs_the_window_before_it():
    memory = PagedMemory(page=4, windows=(None, 8))
    memory.run(0, PREFIX)
    assert memory.cache.match([*PREFIX[:18], 1]) == 0, "the window before 18 is not whole any more"
    assert memory.cache.match([*PREFIX, 1]) == 20


def test_what_a_kept_prefix_needs_of_a_window_stays():
    memory = PagedMemory(page=4, windows=(None, 8), slots=4)
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.compute(0, list(range(30)))
    assert memory.blocks(1) == 5, "two for the checkpoint, three for the end"
    assert memory.run(1, [*PREFIX, 77]) == 20
    memory.cache.release(0, keep=False)
    memory.cache.release(1, keep=False)
    assert memory.run(2, [*PREFIX, 78]) == 20
    memory.cache.release(2, keep=False)
    memory.cache.clear()
    assert memory.blocks(0) == memory.blocks(1) == 0


def test_a_shorter_hit_is_taken_where_the_window_of_the_longer_is_gone():
    memory = PagedMemory(page=4, windows=(None, 4))
    memory.run(0, PREFIX[:10])
    memory.cache.checkpoint(0)
    memory.compute(0, PREFIX[10:])
    assert memory.run(1, [*PREFIX[:15], 1]) == 12, "to the end of the page that was kept"
    assert memory.run(2, [*PREFIX[:11], 1]) == 11


def test_a_group_with_a_window_may_have_few_blocks():
    memory = PagedMemory(
        page=4,
        windows=(None, 8),
        window_blocks=(0, 10),
        slots=3,
        step_tokens=8,
        pool=400,
        context=400,
    )
    for slot in range(2):
        memory.cache.open(slot, [slot])
        assert memory.cache.reserve(slot, 100)
    assert not memory.cache.reserve(2, 20), "each may need five blocks at one time"
    for slot in range(2):
        for _ in range(12):
            memory.compute(slot, [slot] * 8)
    assert memory.blocks(1) <= 4
    with pytest.raises(InternalError, match="step of 9"):
        memory.cache.prepare({0: 9})
    memory.cache.release(0, keep=True)
    assert memory.cache.reserve(2, 20)
    memory.check()


def test_too_few_blocks_for_one_sequence_are_refused():
    with pytest.raises(InternalError, match="needs 5 blocks of group 1, which has 4"):
        PagedMemory(page=4, windows=(None, 8), window_blocks=(0, 4), step_tokens=8)


def test_a_model_of_windows_alone_holds_its_windows_alone():
    memory = PagedMemory(page=4, windows=(6, 8), context=400, pool=400)
    memory.run(0, list(range(98)))
    assert (memory.blocks(0), memory.blocks(1)) == (2, 3)
    memory.cache.release(0, keep=True)
    assert memory.run(1, [*range(98), 7]) == 98


# ---- the engine over it


@pytest.mark.parametrize("windows", [(None,), (None, 8), (8,)])
@pytest.mark.parametrize("page", [1, 5, 16])
def test_many_sessions_say_what_they_say_alone(windows, page):
    runner = FakePagedRunner(page=page, windows=windows, context=120, pool=160)
    engine = drafting_engine(runner, lambda: 0.0)
    heard = []
    for ident in range(8):
        prompt = [*PREFIX[: 5 * (ident % 4)], *range(ident, ident + 20)]
        prompt = [token % 97 for token in prompt]
        speculating = Speculating("draft", 1 + ident % 5)
        made, listener = generation(ident, prompt, runner, tokens=40, speculating=speculating)
        engine.submit(made)
        heard.append((prompt, listener))
    drain(engine)
    for prompt, listener in heard:
        assert listener.ids == runner.greedy(prompt, 40)
    assert engine.stats().preemptions > 0 or windows != (None,)
    assert at_rest(engine, runner)


def test_the_next_turn_of_a_chat_finds_all_of_the_last():
    for windows in ((None,), (None, 8), (8,)):
        runner = FakePagedRunner(page=16, windows=windows)
        engine = Engine(runner)
        chat = [token % 97 for token in PREFIX]
        for turn in range(4):
            made, listener = generation(turn, chat, runner, tokens=10)
            engine.submit(made)
            drain(engine)
            assert listener.last.usage.cached_tokens >= len(chat) - 4 or turn == 0
            chat = [*chat, *listener.ids, 1, 2, 3]
