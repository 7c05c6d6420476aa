"""Reuse is exact or refused, on every kind of memory: full attention, recurrent layers next to
attention, sliding windows.

The reference is a bare loop that computes each text from scratch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Interrupted, Row, StepPlan
from hearth.backends.errors import HearthError
from hearth.backends.llamacpp.context import LlamaContext
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.quant.gguf import preflight
from raw_loop import RawModel
from stepped import Stepped, advance

TOLERANCE = 2e-3
"""Logits are of order 1 and differ by 3e-4 with the size of a batch, where GELU uses llama.cpp's
table of f16 numbers; one missing cell of a window changes them by 1.
"""
KINDS = ("f32_model", "hybrid_model", "window_model")
NO_PAST = ("hybrid_model", "window_model")


def some_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(250), k=length)


class Truth:
    """Logits computed from scratch, cached by text."""

    def __init__(self, path: Path) -> None:
        self.raw = RawModel(path)
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def check(self, session: Stepped) -> None:
        """Every row of logits that `session` saw equals the logits of its tokens computed from
        scratch.
        """
        assert session.logits, "nothing to check"
        for count, logits in session.logits.items():
            tokens = tuple(session.tokens[:count])
            if tokens not in self._known:
                self._known[tokens] = self.raw.after(tokens)
            np.testing.assert_allclose(logits, self._known[tokens], atol=TOLERANCE)


@pytest.fixture(scope="module")
def truths(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Truth]]:
    made: dict[str, Truth] = {}

    def truth(kind: str) -> Truth:
        if kind not in made:
            made[kind] = Truth(request.getfixturevalue(kind))
        return made[kind]

    yield truth
    for each in made.values():
        each.raw.close()


def small_runner(path: Path, **changes: int) -> Driven:
    """Exact mode, in a pool that begins with one block of cells and may have 512."""
    header = preflight.check(path)
    settings = ModelSettings(context=256, max_sessions=4, kv_type="f32", flash_attention=False)
    plan = plan_context(settings, header, weight_bytes=0, available_bytes=1 << 40)
    plan = replace(plan, pool_tokens=512, first_tokens=256, kept_tokens=400)
    plan = replace(plan, **changes)  # type: ignore[arg-type]
    return Driven(LlamaRunner(LlamaModel.open(path), plan, threads=1, batch_threads=1))


@pytest.fixture
def runner(kind: str, request: pytest.FixtureRequest) -> Iterator[Driven]:
    made = small_runner(request.getfixturevalue(kind))
    yield made
    made.close()


@pytest.fixture
def truth(kind: str, truths: Callable[[str], Truth]) -> Truth:
    return truths(kind)


def begun(runner: Driven, slot: int, tokens: list[int], count: int = 3) -> Stepped:
    session = Stepped(runner, slot, tokens, keep_logits=True)
    advance(runner, [session], count)
    return session


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_of_a_chat_computes_only_what_is_new(runner: Driven, truth: Truth) -> None:
    first = begun(runner, 0, some_prompt(90, seed=1), 20)
    runner.cache.release(0, keep=True)
    second = begun(runner, 1, first.tokens + some_prompt(12, seed=2))
    assert second.found == len(first.tokens) - 1
    truth.check(first)
    truth.check(second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_found_after_its_sequence_went_on(runner: Driven, truth: Truth) -> None:
    system = some_prompt(70, seed=3)
    first = Stepped(runner, 0, system, keep_logits=True)
    advance(runner, [first], 1)
    runner.cache.checkpoint(0)
    runner.cache.reserve(0, 130)
    ahead = some_prompt(50, seed=19)
    runner.step(StepPlan((Row(0, 70, ahead, 0),)))
    first.prompt = [*system, *ahead]
    first.tokens, first.computed = [*first.prompt, 5], 120
    advance(runner, [first], 3)
    other = begun(runner, 1, system + some_prompt(9, seed=4), 10)
    runner.cache.release(0, keep=False)
    third = begun(runner, 2, system + some_prompt(15, seed=5))
    assert other.found == third.found == 70
    for session in (first, other, third):
        truth.check(session)
    runner.cache.check_integrity()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ahead", [0, 1, 20, 31, 32, 33, 100])
def test_part_of_a_live_donor_is_exact_or_refused(
    runner: Driven, truth: Truth, kind: str, ahead: int
) -> None:
    """The donor is `ahead` tokens past the common part of the prompts: within and beyond the
    window.
    """
    shared = some_prompt(60, seed=6)
    donor = begun(runner, 0, shared + some_prompt(ahead, seed=7), 1)
    other = begun(runner, 1, [*shared, 260, *some_prompt(5, seed=8)])
    advance(runner, [donor, other], 8)
    if kind == "hybrid_model":
        assert other.found == (60 if ahead == 0 else 0)
    else:
        assert other.found == 60, "nothing was overwritten yet"
    if kind == "f32_model":
        assert runner.cache.cells == len(donor.tokens) - 1 + len(other.tokens) - 1 - 60
    truth.check(donor)
    truth.check(other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prompt_again_is_exact(runner: Driven, truth: Truth, kind: str) -> None:
    prompt = some_prompt(80, seed=9)
    first = begun(runner, 0, prompt)
    runner.cache.release(0, keep=True)
    again = begun(runner, 1, prompt)
    assert again.found == (0 if kind == "hybrid_model" else 79)
    truth.check(first)
    truth.check(again)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_is_exact_and_says_what_it_is(
    runner: Driven, truth: Truth, kind: str
) -> None:
    prompt = some_prompt(100, seed=10)
    session = begun(runner, 0, prompt, 10)
    state = runner.cache.save(0)
    assert state is not None
    runner.cache.release(0, keep=False)
    assert runner.cache.cells == 0
    assert runner.cache.restore(2, state, session.tokens[: session.computed])
    session.slot = 2
    part = begun(runner, 1, prompt[:70] + some_prompt(5, seed=11))
    if kind != "f32_model":
        assert part.found == 0, "a saved window or state is the end of its sequence"
    else:
        assert state.nbytes > session.computed * runner.info.kv_bytes_per_token
    advance(runner, [session, part], 20)
    truth.check(session)
    truth.check(part)


@pytest.mark.parametrize("accepted", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_accepted_is_forgotten_exactly_or_the_slot_is_empty(
    runner: Driven, truth: Truth, kind: str, accepted: int
) -> None:
    session = begun(runner, 0, some_prompt(90, seed=12), 4)
    held = runner.cache.length(0)
    drafts = [*session.tokens[held:], *some_prompt(5, seed=13)]
    assert runner.cache.reserve(0, held + len(drafts))
    if runner.accept(Row(0, held, drafts, 1), accepted):
        assert kind != "hybrid_model"
        session.tokens = [*session.tokens[:held], *drafts[:accepted], *some_prompt(6, seed=14)]
        session.prompt, session.computed = list(session.tokens), held + accepted
        session.logits = {}
    else:
        assert kind != "f32_model" and runner.cache.length(0) == 0
        session = Stepped(runner, 0, session.tokens, keep_logits=True)
    advance(runner, [session], len(session.new) + 4)
    truth.check(session)


@pytest.mark.parametrize("kind", ["window_model"])
def test_cells_beyond_the_window_are_overwritten_and_never_found(
    runner: Driven, truth: Truth
) -> None:
    before = begun(runner, 1, some_prompt(40, seed=15))
    kept = begun(runner, 0, some_prompt(150, seed=14), 4)
    runner.cache.release(0, keep=True)
    runner.cache.release(1, keep=False)
    # The copy begins where `before` was and continues over the first cells of `kept`.
    after = begun(runner, 1, some_prompt(100, seed=16), 4)
    held = len(kept.tokens) - 1
    ends = {runner.store.positions(ident) for ident in range(runner.store.sequences)}
    start = next(first for first, last in ends if last == held - 1)
    assert start > 0, "cells of the kept sequence were taken"
    assert start <= held - 31, "but none that its next token looks at"
    assert runner.cache.match(kept.tokens[: start + 31]) == 0
    part = begun(runner, 2, [*kept.tokens[: start + 32], 251], 4)
    assert part.found == start + 32
    runner.cache.release(2, keep=False)
    whole = begun(runner, 3, [*kept.tokens, 252], 8)
    assert whole.found == held
    for session in (before, kept, after, part, whole):
        truth.check(session)


@pytest.mark.parametrize("kind", KINDS)
def test_growing_moves_kept_and_shared_sequences(runner: Driven, truth: Truth) -> None:
    runner.cache._offloading._worth_moving = 64  # Otherwise it would leave the pool.
    kept = begun(runner, 0, some_prompt(50, seed=21), 4)
    runner.cache.release(0, keep=True)
    system = some_prompt(60, seed=20)
    sharing = [begun(runner, 0, system, 1)]
    runner.cache.checkpoint(0)
    for slot in (1, 2):
        sharing.append(begun(runner, slot, system + some_prompt(10, seed=20 + slot), 2))
        assert sharing[-1].found == 60
    assert runner.store.allocated_tokens == 256
    filling = begun(runner, 3, some_prompt(150, seed=30), 1)
    assert runner.store.allocated_tokens == 512
    runner.cache.check_integrity()
    check_positions(runner)
    advance(runner, sharing, 6)
    runner.cache.release(3, keep=False)
    again = begun(runner, 3, [*kept.tokens, 7])
    assert again.found == len(kept.tokens) - 1
    for session in (kept, filling, again, *sharing):
        truth.check(session)


@pytest.mark.parametrize("kind", ["f32_model"])
@pytest.mark.parametrize("part_tokens", [16, 64])
def test_offloaded_parts_come_back_exactly(runner: Driven, truth: Truth, part_tokens: int) -> None:
    runner.cache._offloading.prefixes.part_tokens = part_tokens
    kept = begun(runner, 0, some_prompt(100, seed=60), 4)
    running = begun(runner, 1, some_prompt(30, seed=61), 2)
    runner.cache.release(0, keep=True)
    advance(runner, [running], 6)
    stats = runner.cache.stats()
    assert (stats.kept_tokens, stats.offloaded_tokens) == (0, 103)
    between = begun(runner, 2, some_prompt(40, seed=62), 2)
    again = begun(runner, 0, [*kept.tokens[:90], 7, 8], 4)
    assert again.found == 90, "more than half of the last part is the same"
    runner.cache.release(0, keep=False)
    whole = begun(runner, 3, [*kept.tokens, 9], 4)
    assert whole.found == 103
    advance(runner, [running, between], 12)
    runner.cache.check_integrity()
    check_positions(runner)
    for session in (running, between, again, whole):
        truth.check(session)


@pytest.mark.parametrize("kind", ["f32_model"])
def test_a_context_without_an_id_to_spare_offloads_nothing(
    request: pytest.FixtureRequest, kind: str
) -> None:
    runner = small_runner(request.getfixturevalue(kind), sequences=4)
    try:
        assert runner.store.sequences == 4
        begun(runner, 0, some_prompt(100, seed=60), 4)
        running = begun(runner, 1, some_prompt(30, seed=61), 2)
        runner.cache.release(0, keep=True)
        advance(runner, [running], 6)
        stats = runner.cache.stats()
        assert (stats.kept_tokens, stats.offloaded_tokens) == (103, 0)
    finally:
        runner.close()


@pytest.mark.parametrize("kind", NO_PAST)
def test_a_failed_step_empties_who_cannot_roll_back_and_harms_nobody_else(
    runner: Driven, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_one = begun(runner, 0, some_prompt(50, seed=40))
    other = begun(runner, 1, some_prompt(60, seed=41))
    decode = LlamaContext.decode

    def failing(context: LlamaContext, batch: object) -> int:
        decode(context, batch)
        return -3

    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", failing)
        with pytest.raises(HearthError) as caught:
            runner.step(StepPlan((failing_one.row(512),)))
    assert caught.value.data["lost_slots"] == [0]
    assert runner.cache.length(0) == 0
    runner.cache.check_integrity()
    again = begun(runner, 0, failing_one.tokens)
    advance(runner, [again, other], 8)
    truth.check(again)
    truth.check(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operations", [0, 5, 30, 60])
def test_an_interrupted_step_counts_for_nothing(
    runner: Driven, truth: Truth, operations: int
) -> None:
    """The prompt takes two graphs of 128 tokens; it is stopped within the first or the second."""
    other = begun(runner, 1, some_prompt(60, seed=44))
    runner.cache.release(1, keep=True)
    session = Stepped(runner, 0, some_prompt(150, seed=43), keep_logits=True)
    api = runner.model.library.api
    left = iter([False] * operations)
    callback = api.ggml_abort_callback(lambda _: next(left, True))
    handle = runner.store.context._handle
    api.llama_set_abort_callback(handle, callback, None)
    with pytest.raises(Interrupted):
        runner.step(StepPlan((session.row(512),)))
    runner._interrupt.attach(api, handle)
    assert runner.cache.length(0) == 0
    runner.cache.check_integrity()
    check_positions(runner)
    advance(runner, [session], 8)
    truth.check(session)
    again = begun(runner, 2, other.tokens + some_prompt(9, seed=45))
    truth.check(again)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupting_ends_a_step_until_it_is_taken_back(runner: Driven, truth: Truth) -> None:
    session = begun(runner, 0, some_prompt(50, seed=46))
    length = runner.cache.length(0)
    runner.interrupt(True)
    with pytest.raises(Interrupted) as stopped:
        runner.step(StepPlan((session.row(512),)))
    runner.interrupt(False)
    if runner.info.keeps_past:
        assert not stopped.value.lost_slots and runner.cache.length(0) == length
        advance(runner, [session], 8)
        truth.check(session)
    else:
        assert stopped.value.lost_slots <= {0} and runner.cache.length(0) in (0, length)
    runner.cache.check_integrity()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_room_changes_nothing(
    runner: Driven, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(runner, 0, some_prompt(50, seed=42))
    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", lambda *_: 1)
        with pytest.raises(HearthError) as caught:
            runner.step(StepPlan((session.row(512),)))
    assert caught.value.code == "busy"
    advance(runner, [session], 8)
    truth.check(session)


@pytest.mark.parametrize("kind", [*KINDS, "guide_model"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_every_answer_is_as_if_alone(
    runner: Driven, truth: Truth, seed: int
) -> None:
    """Chats that share beginnings, branch, continue, are kept, dropped, saved and restored, in a
    pool that grows, and is then nearly full.
    """
    chooser = random.Random(seed)
    texts = [some_prompt(40, seed=50)]
    open_ones: dict[int, Stepped] = {}
    found = 0
    for _ in range(60):
        slot = chooser.randrange(3)
        session = open_ones.get(slot)
        if session is None:
            start = chooser.choice(texts)
            cut = chooser.choice((len(start), chooser.randint(1, len(start))))
            prompt = (start[:cut] + some_prompt(chooser.randint(1, 12), chooser.random()))[:130]
            session = open_ones[slot] = Stepped(runner, slot, prompt, keep_logits=True)
            found += session.found
            advance(runner, [session], 1, chooser.choice((7, 64)))
            continue
        action = chooser.choice(("go on", "go on", "keep", "drop", "checkpoint", "save"))
        if action == "go on":
            together = [each for each in open_ones.values() if len(each.tokens) < 150]
            most = max((len(each.new) for each in together), default=0)
            advance(runner, together, min(most + chooser.randint(1, 4), 15))
        elif action == "checkpoint":
            runner.cache.checkpoint(slot)
            texts.append(session.tokens[: session.computed])
        elif action == "save":
            state = runner.cache.save(slot)
            assert state is not None
            runner.cache.release(slot, keep=chooser.random() < 0.5)
            assert runner.cache.restore(slot, state, session.tokens[: session.computed])
        else:
            runner.cache.release(slot, keep=action == "keep")
            texts.append(session.tokens)
            truth.check(session)
            del open_ones[slot]
        runner.cache.check_integrity()
        check_positions(runner)
    for session in open_ones.values():
        truth.check(session)
    assert found > 0


def check_positions(runner: Driven) -> None:
    for slot in range(runner.info.max_sequences):
        held = runner.cache.length(slot)
        if held:
            assert runner.store.positions(runner.cache.handle(slot))[1] == held - 1
