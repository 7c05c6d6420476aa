"""Key-value memory that changes its layout, and attention that is chosen while it runs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row, RunnerLost, StepPlan
from hearth.backends.errors import Busy, DoesNotFit
from hearth.backends.llamacpp import store as store_module
from hearth.backends.llamacpp.attention_choice import Attention, AttentionChoice
from hearth.backends.llamacpp.context import LlamaContext
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.llamacpp.state_layout import UnknownLayout, transposed
from hearth.backends.machine.memory import available_bytes
from hearth.quant.gguf.reader import read_header

NEVER = Attention(flash_s=0.002, plain_s=0.001)
SHARED, FIRST, SECOND = [5, 6, 7, 8] * 6, [11, 12, 13], [21, 22]


@pytest.fixture(params=["f16", "f32"])
def runner(f32_model, request):
    """A runner that may change its kind of attention as it runs; here it never does by itself."""
    settings = ModelSettings(
        context=256, max_sessions=4, kv_type=request.param, flash_attention=False
    )
    plan = plan_context(
        settings, read_header(f32_model), weight_bytes=0, available_bytes=available_bytes()
    )
    model = LlamaModel.open(f32_model)
    made = Driven(LlamaRunner(model, plan, threads=1, batch_threads=1, attention=NEVER))
    yield made
    made.close()


def feed(runner, slot, tokens):
    """Compute `tokens` in `slot`; returns the last logits."""
    cache = runner.cache
    assert cache.reserve(slot, cache.length(slot) + len(tokens))
    result = runner.step(StepPlan((Row(slot, cache.length(slot), tokens, 1),)))
    return result.logits[slot][0].copy()


def two_that_share(runner):
    runner.cache.open(0, [])
    feed(runner, 0, [*SHARED, *FIRST])
    assert runner.cache.open(1, [*SHARED, *SECOND, 1]) == len(SHARED)
    feed(runner, 1, SECOND)


def test_what_is_moved_goes_on_as_if_it_had_not_been(runner):
    two_that_share(runner)
    saved = [runner.store.context.export_sequence(runner.cache.handle(slot)) for slot in (0, 1)]
    cells = runner.cache.cells
    runner.store.transpose()
    assert runner.store.by_channel
    runner.store.transpose()
    for slot, state in enumerate(saved):
        again = runner.store.context.export_sequence(runner.cache.handle(slot))
        assert np.array_equal(again, state), "there and back changes nothing"
    expected = []
    for slot in (0, 1):
        held = runner.cache.length(slot)
        assert runner.cache.reserve(slot, held + 1)
        row = Row(slot, held, [30], 1, handle=runner.cache.handle(slot))
        expected.append(runner.runner.step(StepPlan((row,))).logits[slot][0].copy())
        assert runner.cache.undo(slot, 1)
    runner.store.transpose()
    for slot in (0, 1):
        np.testing.assert_allclose(feed(runner, slot, [30]), expected[slot], atol=0.02)
    assert runner.cache.cells == cells + 2, "what was shared still is"
    runner.cache.check_integrity()


def test_a_saved_sequence_comes_back_in_the_other_layout(runner):
    two_that_share(runner)
    state = runner.cache.save(0)
    expected = feed(runner, 0, [30])
    runner.store.transpose()
    runner.cache.release(0, keep=False)
    assert runner.cache.restore(0, state, [*SHARED, *FIRST])
    np.testing.assert_allclose(feed(runner, 0, [30]), expected, atol=0.02)


def test_an_empty_memory_can_be_turned(runner):
    runner.store.transpose()
    runner.cache.open(0, [])
    assert np.isfinite(feed(runner, 0, SHARED)).all()


def test_what_is_not_understood_is_refused(runner):
    two_that_share(runner)
    state = runner.store.context.export_sequence(runner.cache.handle(0))
    with pytest.raises(UnknownLayout):
        transposed(state, by_channel=False)
    for cut in (3, 11, 40, len(state) // 2, len(state) - 1):
        with pytest.raises(UnknownLayout):
            transposed(state[:cut], by_channel=True)
    with pytest.raises(UnknownLayout):
        transposed(np.append(state, np.uint8(0)), by_channel=True)


def test_turning_takes_the_memory_of_one_copy(runner):
    runner.cache.open(0, [])
    feed(runner, 0, [5, 6, 7, 8] * 60)
    state = runner.store.context.export()
    tracemalloc.start()
    try:
        changed = transposed(state, by_channel=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(changed) == len(state)
    assert peak_bytes < 1.25 * len(state)


def test_a_memory_that_cannot_be_turned_stays_as_it_is(runner, monkeypatch):
    two_that_share(runner)
    expected = runner.store.context.export()

    def refuse(state, *, by_channel):
        raise UnknownLayout("not today")

    monkeypatch.setattr(store_module, "transposed", refuse)
    with pytest.raises(Busy, match="not today"):
        runner.store.transpose()
    assert np.array_equal(runner.store.context.export(), expected)


def test_a_memory_that_cannot_be_turned_back_ends_the_worker(runner, monkeypatch):
    two_that_share(runner)
    store, made, closed = runner.store, [], []
    make, close = store._make_context, LlamaContext.close

    def making(cells, by_channel):
        if by_channel:
            raise DoesNotFit("no memory for it")
        made.append(make(cells, by_channel))
        return made[-1]

    def turning(state, *, by_channel):
        if not by_channel:
            raise MemoryError
        return transposed(state, by_channel=by_channel)

    monkeypatch.setattr(store, "_make_context", making)
    monkeypatch.setattr(store_module, "transposed", turning)
    monkeypatch.setattr(LlamaContext, "close", lambda one: (closed.append(one), close(one)))
    with pytest.raises(RunnerLost, match="moved back"):
        store.transpose()
    assert made[0] in closed


def test_the_runner_changes_when_that_would_have_paid(runner, monkeypatch):
    runner.cache.open(0, [])
    feed(runner, 0, SHARED)
    assert runner.plan.flash_attention == 1
    monkeypatch.setattr(AttentionChoice, "should_change", lambda self, cells: self.flash)
    before = runner.cache.length(0)
    feed(runner, 0, [30])
    assert runner.plan.flash_attention == 0 and runner.store.by_channel
    assert runner.cache.length(0) == before + 1


def test_a_runner_that_cannot_change_goes_on(runner, monkeypatch):
    runner.cache.open(0, [])
    feed(runner, 0, SHARED)
    monkeypatch.setattr(store_module, "available_bytes", lambda: 0)
    monkeypatch.setattr(AttentionChoice, "should_change", lambda self, cells: True)
    assert np.isfinite(feed(runner, 0, [30])).all()
    assert runner.plan.flash_attention == 1


def choice(flash):
    return AttentionChoice(flash=flash, flash_factor=4.0, cell_s=1e-5, cell_bytes=100_000)


def steps_until_change(chosen, rows, cells):
    for step in range(10_000):
        if chosen.should_change(cells):
            return step
        chosen.note(rows, cells)
    return None


def test_one_long_conversation_leaves_flash_attention():
    rows = [Row(0, 4000, [1], 1)]
    assert 5 < steps_until_change(choice(True), rows, 4000) < 50
    assert steps_until_change(choice(False), rows, 4000) is None


def test_many_short_ones_return_to_it():
    rows = [Row(slot, 150, [1], 1) for slot in range(16)]
    assert steps_until_change(choice(False), rows, 16 * 150) < 50
    assert steps_until_change(choice(True), rows, 16 * 150) is None


def test_a_short_conversation_stays():
    rows = [Row(0, 20, [1], 1)]
    assert steps_until_change(choice(True), rows, 20) is None


def test_what_was_lost_is_forgotten_where_the_other_would_have_been_worse():
    chosen = choice(True)
    for _ in range(1000):
        chosen.note([Row(0, 4000, [1], 1)], 4000)
        chosen.note([Row(slot, 200, [1], 1) for slot in range(20)], 4000 * 3)
    assert not chosen.should_change(4000)
    assert chosen.flash
    chosen.note([Row(0, 4000, [1] * 10_000, 1)], 4000)
    chosen.give_up()
    assert not chosen.should_change(1)
