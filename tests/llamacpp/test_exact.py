"""Exact mode: whatever else the runner does, each sequence gets the tokens of a bare loop that runs
it alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import Busy, DoesNotFit, HearthError
from hearth.backends.llamacpp import params
from hearth.backends.llamacpp.context import LlamaContext
from hearth.backends.llamacpp.load import Loaded
from hearth.quant.json_fields import read_fields
from native_decoders import decoder_of, family_and_config
from raw_loop import RawModel
from stepped import Stepped, advance
from tiny_checkpoints import tiny_checkpoint
from tiny_ggufs import write_gguf

Load = Callable[..., Loaded]
NEW = 24


def some_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(266), k=length)


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
    runner = load(f32_model, max_batch_tokens=chunk).runner
    session = Stepped(runner, 0, some_prompt(90, seed=1))
    advance(runner, [session], NEW, chunk)
    assert session.new == raw.greedy(session.prompt, NEW)


def test_sequences_in_one_batch_do_not_change_each_other(
    load: Load, f32_model: Path, raw: RawModel
) -> None:
    runner = load(f32_model).runner
    prompts = [some_prompt(length, seed=length) for length in (1, 40, 75, 130)]
    sessions = [Stepped(runner, slot, prompt) for slot, prompt in enumerate(prompts)]
    advance(runner, sessions, NEW, chunk=60)
    assert [session.new for session in sessions] == [raw.greedy(p, NEW) for p in prompts]


def test_a_pool_that_grows_keeps_who_runs_and_who_is_kept(
    load: Load, long_model: Path, raw_long: RawModel
) -> None:
    runner = load(long_model).runner
    first = runner.store.allocated_tokens
    system = some_prompt(700, seed=20)
    kept = Stepped(runner, 7, some_prompt(300, seed=21))
    advance(runner, [kept], 1)
    runner.cache.release(7, keep=True)
    donor = Stepped(runner, 0, system + some_prompt(100, seed=22))
    advance(runner, [donor], 2)
    sharer = Stepped(runner, 1, system + some_prompt(100, seed=23))
    assert sharer.found == 700
    others = [Stepped(runner, slot, some_prompt(1100, seed=slot)) for slot in (2, 3, 4)]
    sessions = [donor, sharer, *others]
    advance(runner, sessions, NEW)
    assert runner.store.allocated_tokens > first
    again = Stepped(runner, 5, kept.tokens)
    assert again.found + runner.cache.arriving(5) == 300
    advance(runner, [again], NEW)
    for session in [*sessions, again]:
        assert session.new == raw_long.greedy(session.prompt, NEW)
    runner.cache.check_integrity()
    assert_positions(runner)


def assert_positions(runner: Any) -> None:
    """The positions in llama.cpp are those that the cache expects."""
    for slot in range(runner.info.max_sequences):
        if runner.cache.length(slot):
            held = runner.cache.length(slot)
            assert runner.store.positions(runner.cache.handle(slot)) == (0, held - 1)


@pytest.mark.parametrize("reason", ["no memory", "refused"])
def test_a_pool_that_cannot_grow_is_busy_and_harms_nobody(
    load: Load,
    long_model: Path,
    raw_long: RawModel,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    runner = load(long_model, max_batch_tokens=4096).runner
    session = Stepped(runner, 0, some_prompt(60, seed=12))
    advance(runner, [session], 4)
    make = LlamaContext.__init__

    def refusing(context: LlamaContext, *arguments: Any) -> None:
        if arguments[2] > 4096:
            raise DoesNotFit("no memory for it")
        make(context, *arguments)

    with monkeypatch.context() as patch:
        if reason == "refused":
            patch.setattr(LlamaContext, "__init__", refusing)
        else:
            patch.setattr("hearth.backends.llamacpp.store.available_bytes", lambda: 1000)
        assert runner.cache.reserve(1, 4090)
        with pytest.raises(Busy, match="cannot grow"):
            runner.step(StepPlan((Row(1, 0, [1] * 4090, 1),)))
    assert not runner.cache.reserve(1, 4090), "no more is promised than there is"
    assert runner.cache.length(1) == 0
    advance(runner, [session], NEW)
    assert session.new == raw_long.greedy(session.prompt, NEW)


def test_where_there_is_no_memory_for_twice_the_pool_it_grows_by_a_little(
    load: Load, long_model: Path, raw_long: RawModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(long_model).runner
    store = runner.store
    session = Stepped(runner, 0, some_prompt(60, seed=12))
    advance(runner, [session], 4)
    make, before = LlamaContext.__init__, store.allocated_tokens

    def refusing(context: LlamaContext, *arguments: Any) -> None:
        if arguments[2] > before + 1024:
            raise DoesNotFit("no memory for it")
        make(context, *arguments)

    monkeypatch.setattr(LlamaContext, "__init__", refusing)
    store.make_room(before + 100)
    assert before + 100 <= store.allocated_tokens <= before + 1024
    advance(runner, [session], NEW)
    assert session.new == raw_long.greedy(session.prompt, NEW)


def test_nothing_is_saved_where_memory_is_short(
    load: Load, f32_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(f32_model).runner
    advance(runner, [Stepped(runner, 0, some_prompt(60, seed=13))], 2)
    monkeypatch.setattr("hearth.backends.llamacpp.store.available_bytes", lambda: 1 << 20)
    assert runner.cache.save(0) is None


def test_a_saved_sequence_makes_the_pool_grow(
    load: Load, long_model: Path, raw_long: RawModel
) -> None:
    runner = load(long_model).runner
    session = Stepped(runner, 0, some_prompt(1500, seed=15))
    advance(runner, [session], 2)
    state = runner.cache.save(0)
    assert state is not None
    runner.cache.release(0, keep=False)
    others = [Stepped(runner, slot, some_prompt(1000, seed=30 + slot)) for slot in (1, 2, 3)]
    advance(runner, others, 1)
    first = runner.store.allocated_tokens
    assert runner.cache.restore(0, state, session.tokens[: session.computed])
    assert runner.store.allocated_tokens > first
    advance(runner, [session, *others], 8)
    for each in (session, *others):
        assert each.new == raw_long.greedy(each.prompt, 8)
    assert_positions(runner)


def test_a_saved_sequence_that_cannot_be_taken_leaves_an_empty_slot(
    load: Load, long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(long_model).runner
    session = Stepped(runner, 0, some_prompt(1500, seed=15))
    advance(runner, [session], 1)
    state = runner.cache.save(0)
    assert state is not None
    runner.cache.release(0, keep=False)
    other = Stepped(runner, 1, some_prompt(3000, seed=16))
    advance(runner, [other], 1)
    held = runner.cache.cells
    monkeypatch.setattr("hearth.backends.llamacpp.store.available_bytes", lambda: 1000)
    assert not runner.cache.restore(0, state, session.tokens[: session.computed])
    assert runner.cache.cells == held
    assert runner.cache.length(0) == 0
    ends = {runner.store.positions(ident)[1] for ident in range(runner.store.sequences)}
    assert ends == {-1, held - 1}


@pytest.mark.parametrize("code", [1, -1, -3])
def test_a_step_that_fails_counts_for_nothing(
    load: Load, f32_model: Path, raw: RawModel, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    runner = load(f32_model).runner
    prompt = some_prompt(40, seed=11)
    sessions = [Stepped(runner, 0, prompt), Stepped(runner, 1, [*prompt[:20], 3])]
    advance(runner, sessions, 3)
    held = runner.cache.cells
    decode = LlamaContext.decode

    def failing(context: LlamaContext, batch: object) -> int:
        if code != 1:
            decode(context, batch)  # When it fails, a part of the work is done and stored.
        return code

    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", failing)
        rows = tuple(session.row(512) for session in sessions)
        with pytest.raises(HearthError) as caught:
            runner.step(StepPlan(rows))
    assert caught.value.code == ("busy" if code == 1 else "internal_error")
    assert not caught.value.data.get("lost_slots")
    assert runner.cache.cells == held
    assert_positions(runner)
    advance(runner, sessions, NEW)
    for session in sessions:
        assert session.new == raw.greedy(session.prompt, NEW)


def test_a_pool_that_grows_keeps_the_factors_of_longrope(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(
        "phi3", tmp_path, original_max_position_embeddings=512, max_position_embeddings=2048
    )
    kind, _ = family_and_config(read_fields(tmp_path / "config.json"))
    path = write_gguf(tmp_path / "phi3.gguf", "phi3", kind, decoder_of(tmp_path))
    raw = RawModel(path, context=2048)
    prompt = some_prompt(300, seed=1)
    monkeypatch.setattr(params, "START_CELLS", 256)
    loaded = load(path, max_sessions=1)
    fingerprints = {loaded.runner.store.fingerprint}
    session = Stepped(loaded.runner, 0, prompt)
    advance(loaded.runner, [session], 300)
    assert loaded.runner.store.allocated_tokens > 512
    assert session.new == raw.greedy(prompt, 300)
    loaded.runner.cache.release(0, keep=False)
    side = loaded.runner.beside(prompt)
    if side is not None:  # With one thread there is no background prefill.
        side.wait()
        assert loaded.runner.store.restore(1, side.result())
    short = load(path, max_sessions=1, context=512)
    fingerprints.add(short.runner.store.fingerprint)
    assert short.runner.store.allocated_tokens == 256
    assert len(fingerprints) == 2
    raw.close()
