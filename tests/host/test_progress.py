"""A worker that has work and does nothing is noticed and ended; one that computes is not."""

import asyncio
import os
import signal
import sys

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.backends.contract.events import Failed, Finished, Token
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.contract.wire import Generate, Load
from hearth.backends.host import worker_process
from hearth.backends.host.progress_watch import ProgressWatch
from hosts import QUICK, Heard, last_of
from stand_ins import COMPUTES, IS_MUTE, answering

ASK = Generate(Request(text="x"))


def test_a_process_that_answers_or_steps_is_never_stalled():
    watch = ProgressWatch(stall_s=12, longest_step_s=120)
    for step in range(100):
        assert not watch.check(("steps", step), 0.0, 1.0)
    for _ in range(100):
        watch.progress()
        assert not watch.check(("steps", 99), 0.0, 1.0)
    assert watch.idle_s == 0


def test_one_that_uses_no_processor_is_stalled_at_the_limit():
    watch = ProgressWatch(stall_s=12, longest_step_s=120)
    stalled = [watch.check(None, 5.0, 1.0) for _ in range(14)]
    assert stalled == [False] * 12 + [True] * 2
    assert watch.idle_s == 13


def test_one_that_computes_may_take_longer_for_a_step():
    watch = ProgressWatch(stall_s=12, longest_step_s=120)
    stalled = [watch.check(("steps", 1), float(second), 1.0) for second in range(122)]
    assert stalled.index(True) == 120


def test_a_pause_of_the_watcher_is_not_held_against_the_process():
    watch = ProgressWatch(stall_s=12, longest_step_s=120)
    watch.check(None, 0.0, 1.0)
    assert not watch.check(None, 0.0, 3600.0)
    assert watch.idle_s == 2 * watch.interval_s


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(worker_process, "STALL_S", 0.6)
    monkeypatch.setattr(worker_process, "LONGEST_STEP_S", 0.6)
    monkeypatch.setattr(worker_process, "_STATS_TIMEOUT_S", 0.02)


@in_loop
async def test_a_worker_that_hangs_is_ended_and_its_callers_are_told_why(
    supervisor, quick, workers
):
    workers.code = answering(IS_MUTE)
    spec = ModelSpec("x")
    assert isinstance(await last_of(supervisor, spec, Load()), ModelInfo)
    [before] = await supervisor.stats()
    last = await asyncio.wait_for(last_of(supervisor, spec, ASK), 30)
    assert isinstance(last, Failed) and last.error.code == "worker_died"
    assert "no progress" in last.error.message
    assert isinstance(await last_of(supervisor, spec, Load()), ModelInfo)
    [after] = await supervisor.stats()
    assert after.pid != before.pid and after.restarts == 1
    await supervisor.unload(None)


READS = COMPUTES.replace("live_tokens=10, steps=", "live_tokens=")
"""Reads a prefix from disk."""


@pytest.mark.parametrize("code", [COMPUTES, READS])
@in_loop
async def test_a_worker_that_makes_steps_or_reads_is_left_alone(supervisor, quick, workers, code):
    workers.code = answering(code)
    spec = ModelSpec("x")
    asking = asyncio.create_task(last_of(supervisor, spec, ASK))
    await asyncio.wait({asking}, timeout=2)
    assert not asking.done()
    [worker] = await supervisor.stats()
    assert worker.restarts == 0
    await supervisor.unload(None)
    await asking


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP there")
@in_loop
async def test_a_stopped_worker_is_noticed_and_the_next_request_is_answered(
    supervisor, monkeypatch, tmp_path
):
    monkeypatch.setattr(worker_process, "STALL_S", 2.0)
    path = tiny_llama(tmp_path / "tiny.gguf", context=8192)
    spec = ModelSpec(str(path), "tiny", settings=QUICK)
    sampling = SamplingParams(temperature=0)
    endless = Generate(Request(text="the", sampling=sampling, ignore_eos=True))
    speaks = asyncio.Event()
    heard = Heard(lambda answer: isinstance(answer, Token) and speaks.set())
    asking = asyncio.create_task(last_of(supervisor, spec, endless, heard))
    await asyncio.wait_for(speaks.wait(), 60)
    [worker] = await supervisor.stats()
    os.kill(worker.pid, signal.SIGSTOP)
    last = await asyncio.wait_for(asking, 60)
    assert isinstance(last, Failed) and "no progress for" in last.error.message
    short = Generate(Request(text="the", sampling=sampling, max_tokens=3))
    assert isinstance(await last_of(supervisor, spec, short), Finished)
    await supervisor.unload(None)
