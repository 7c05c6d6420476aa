"""Exact mode: whatever the runner does besides, each sequence gets the tokens of a bare loop
alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import Busy, DoesNotFit, HearthError
from hearth.backends.llamacpp.context import LlamaContext
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.llamacpp.runner import LlamaRunner
from raw_loop import RawModel

Load = Callable[..., Loaded]
NEW = 24


def some_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(266), k=length)


class Session:
    """A sequence driven by hand: what is computed chases what is known."""

    def __init__(self, slot: int, prompt: list[int], computed: int = 0) -> None:
        self.slot = slot
        self.tokens = list(prompt)
        self.new: list[int] = []
        self.computed = computed


def run(runner: LlamaRunner, sessions: list[Session], count: int, chunk: int = 512) -> None:
    """Advance all sessions together until each has `count` new tokens; a chunk is shared evenly."""
    while waiting := [session for session in sessions if len(session.new) < count]:
        share = max(1, min(chunk, runner.info.chunk_tokens) // len(waiting))
        rows = []
        for session in waiting:
            some = session.tokens[session.computed : session.computed + share]
            ends = session.computed + len(some) == len(session.tokens)
            rows.append(Row(session.slot, session.computed, some, wants_logits=ends))
        result = runner.step(StepPlan(tuple(rows)))
        for session, row in zip(waiting, rows, strict=True):
            session.computed += len(row.tokens)
            if row.wants_logits:
                drawn = int(np.argmax(result.logits[session.slot]))
                session.tokens.append(drawn)
                session.new.append(drawn)


@pytest.fixture(scope="module")
def raw(f32_model: Path) -> Iterator[RawModel]:
    model = RawModel(f32_model)
    yield model
    model.close()


@pytest.fixture(scope="module")
def raw_long(long_model: Path) -> Iterator[RawModel]:
    model = RawModel(long_model, context=4096)
    yield model
    model.close()


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunks_do_not_change_the_tokens(
    load: Load, f32_model: Path, raw: RawModel, chunk: int
) -> None:
    runner = load(f32_model, chunk_tokens=chunk).runner
    prompt = some_prompt(90, seed=1)
    session = Session(0, prompt)
    run(runner, [session], NEW, chunk)
    assert session.new == raw.greedy(prompt, NEW)


def test_sequences_in_one_batch_do_not_change_each_other(
    load: Load, f32_model: Path, raw: RawModel
) -> None:
    runner = load(f32_model).runner
    prompts = [some_prompt(length, seed=length) for length in (1, 40, 75, 130)]
    sessions = [Session(slot, prompt) for slot, prompt in enumerate(prompts)]
    run(runner, sessions, NEW, chunk=60)
    assert [session.new for session in sessions] == [raw.greedy(p, NEW) for p in prompts]


def test_a_pool_that_grows_keeps_every_sequence(
    load: Load, long_model: Path, raw_long: RawModel
) -> None:
    runner = load(long_model).runner
    first = runner.cache.cells
    prompts = [some_prompt(1100, seed=seed) for seed in range(4)]
    sessions = [Session(slot, prompt) for slot, prompt in enumerate(prompts)]
    run(runner, sessions, NEW)
    assert runner.cache.cells > first
    assert [session.new for session in sessions] == [raw_long.greedy(p, NEW) for p in prompts]


def test_growing_leaves_logits_and_shared_cells_as_they_were(load: Load, long_model: Path) -> None:
    runner = load(long_model).runner
    runner.cache.make_room(1)
    prompt = some_prompt(900, seed=5)
    for start in range(0, 900, 450):
        runner.step(StepPlan((Row(0, start, prompt[start : start + 450], False),)))
    for slot in (1, 2, 3):
        runner.cache.fork(0, slot, 900)
    before = runner.step(StepPlan((Row(1, 900, [7], True),))).logits[1].copy()
    runner.cache.trim(1, 900)
    cells = runner.cache.cells
    runner.cache.make_room(cells)
    after = runner.step(StepPlan((Row(1, 900, [7], True),))).logits[1]
    assert runner.cache.cells == 2 * cells
    np.testing.assert_array_equal(before, after)
    assert runner.cache.used_tokens() == 4 * 900 + 1


@pytest.mark.parametrize("reason", ["no memory", "refused"])
def test_a_pool_that_cannot_grow_is_busy_and_harms_nobody(
    load: Load,
    long_model: Path,
    raw_long: RawModel,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    runner = load(long_model, chunk_tokens=4096).runner
    prompt = some_prompt(60, seed=12)
    session = Session(0, prompt)
    run(runner, [session], 4)
    make = LlamaContext.__init__

    def refusing(context: LlamaContext, *arguments: Any) -> None:
        if arguments[2] > 4096:
            raise DoesNotFit("no memory for it")
        make(context, *arguments)

    with monkeypatch.context() as patch:
        if reason == "refused":
            patch.setattr(LlamaContext, "__init__", refusing)
        else:
            patch.setattr("hearth.backends.llamacpp.cache.available_bytes", lambda: 1000)
        with pytest.raises(Busy, match="cannot grow"):
            runner.step(StepPlan((Row(1, 0, [1] * 4090, True),)))
    run(runner, [session], NEW)
    assert session.new == raw_long.greedy(prompt, NEW)


def test_a_fork_from_a_live_donor_changes_neither(
    load: Load, f32_model: Path, raw: RawModel
) -> None:
    runner = load(f32_model).runner
    system = some_prompt(80, seed=2)
    donor = Session(0, system + some_prompt(20, seed=3))
    run(runner, [donor], 5)
    branch = system + some_prompt(30, seed=4)
    runner.cache.fork(0, 2, len(system))
    fork = Session(2, branch, computed=len(system))
    run(runner, [donor, fork], NEW)
    assert donor.new == raw.greedy(donor.tokens[:100], NEW)
    assert fork.new == raw.greedy(branch, NEW)


def test_a_fork_outlives_its_donor(load: Load, f32_model: Path, raw: RawModel) -> None:
    runner = load(f32_model).runner
    prompt = some_prompt(50, seed=8)
    donor = Session(0, prompt)
    run(runner, [donor], 1)
    runner.cache.fork(0, 1, 49)
    runner.cache.release(0)
    fork = Session(1, prompt, computed=49)
    run(runner, [fork], NEW)
    assert fork.new == raw.greedy(prompt, NEW)


def test_trimming_takes_back_what_came_after(load: Load, f32_model: Path, raw: RawModel) -> None:
    runner = load(f32_model).runner
    prompt = some_prompt(60, seed=9)
    session = Session(0, prompt)
    run(runner, [session], 10)
    other = prompt[:33] + some_prompt(20, seed=10)
    assert runner.cache.trim(0, 33)
    again = Session(0, other, computed=33)
    run(runner, [again], NEW)
    assert again.new == raw.greedy(other, NEW)


@pytest.mark.parametrize("code", [1, 2, -1, -3])
def test_a_step_that_fails_counts_for_nothing(
    load: Load, f32_model: Path, raw: RawModel, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    runner = load(f32_model).runner
    prompt = some_prompt(40, seed=11)
    session, other = Session(0, prompt), Session(1, prompt[:20])
    run(runner, [session, other], 3)
    held = runner.cache.used_tokens()
    decode = LlamaContext.decode

    def failing(context: LlamaContext, batch: object) -> int:
        if code != 1:
            decode(context, batch)  # part of the work is done and stored when it fails
        return code

    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", failing)
        rows = tuple(
            Row(s.slot, s.computed, s.tokens[s.computed :], True) for s in (session, other)
        )
        with pytest.raises(HearthError) as caught:
            runner.step(StepPlan(rows))
    assert caught.value.code == ("busy" if code == 1 else "internal_error")
    assert runner.cache.used_tokens() == held
    run(runner, [session, other], NEW)
    assert session.new == raw.greedy(prompt, NEW)
    assert other.new == raw.greedy(prompt[:20], NEW)
