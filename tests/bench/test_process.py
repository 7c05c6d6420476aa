"""The measuring process, from a job to its last message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.app import bench_job
from hearth.app.bench_job import run_bench
from hearth.app.jobs.job import Job as Process
from hearth.backends.bench.job import Job, Measured, Message, Setup, Skipped, Tuned
from hearth.backends.contract.models import ModelSpec
from hearth.backends.errors import CorruptFile, HearthError, InvalidParameter, ModelNotFound


def messages(job: Job, log_dir: Path) -> list[Message]:
    found: list[Message] = []
    run_bench(job, found.append, log_dir)
    return found


def test_a_job_gives_its_setup_and_a_result_for_each_test(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    found = messages(job(tests=("pp", "tg")), tmp_path)
    (setup,) = (message for message in found if isinstance(message, Setup))
    assert setup.info.name == "tiny" and setup.info.kv_type == "f32"
    assert setup.flash_attention == "off" and setup.pool_tokens >= 8
    assert setup.read_bytes_per_s > 0
    tests = [message.test for message in found if isinstance(message, Measured)]
    assert tests == ["pp8", "tg4"]


def test_what_does_not_fit_the_context_is_skipped_with_both_numbers(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    found = messages(job(tests=("tg", "depth"), depth_tokens=600), tmp_path)
    (skipped,) = (message for message in found if isinstance(message, Skipped))
    assert skipped.test == "tg4 @ d600"
    assert "676" in skipped.reason and "512" in skipped.reason
    assert [message.test for message in found if isinstance(message, Measured)] == ["tg4"]


def test_tuning_tries_all_settings_and_chooses(job: Callable[..., Job], tmp_path: Path) -> None:
    # Heads of 16 cannot be stored in blocks of 32.
    found = messages(job(tune=True, repeats=1, sessions=(1, 2)), tmp_path)
    (skipped,) = (message for message in found if isinstance(message, Skipped))
    assert skipped.test == "KV q8_0"
    (tuned,) = (message for message in found if isinstance(message, Tuned))
    assert tuned.latency.sessions == 1 and tuned.latency.kv_type == "f16"
    assert tuned.throughput.sessions in (1, 2)
    assert "llama" in tuned.library


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({"spec": ModelSpec("/nowhere/at-all.gguf")}, ModelNotFound),
        ({"repeats": 0}, InvalidParameter),
    ],
    ids=["no file", "no repeats"],
)
def test_what_goes_wrong_arrives_with_its_type(
    job: Callable[..., Job], tmp_path: Path, damage: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        messages(job(**damage), tmp_path)


def test_a_damaged_file_is_a_typed_error(job: Callable[..., Job], tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_llama(tmp_path / "whole.gguf").read_bytes()[:1000])
    with pytest.raises(CorruptFile):
        messages(job(spec=ModelSpec(str(path))), tmp_path)


@in_loop
async def test_a_process_that_dies_is_an_error(job: Callable[..., Job], tmp_path: Path) -> None:
    process = await Process.start(bench_job.measure, {"job": asdict(job(repeats=50))}, tmp_path)
    await anext(process.updates())
    psutil.Process(process.pid).kill()
    with pytest.raises(HearthError, match="without an answer"):
        await process.result()
    await process.close()


def test_leaving_early_ends_the_process(job: Callable[..., Job], tmp_path: Path) -> None:
    async def leave() -> int:
        process = await Process.start(bench_job.measure, {"job": asdict(job(repeats=50))}, tmp_path)
        await anext(process.updates())
        await process.close()
        return process.pid

    assert not psutil.pid_exists(asyncio.run(leave()))
