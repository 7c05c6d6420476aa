"""The measuring process, from a job to its last message."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.backends.bench.child import BenchProcess
from hearth.backends.bench.job import (
    Done,
    Job,
    Measured,
    Problem,
    Setup,
    Skipped,
    Tuned,
    decode_message,
    encode_job,
)
from hearth.backends.contract.models import ModelSpec
from hearth.backends.errors import CorruptFile, InvalidParameter, ModelNotFound, WorkerDied


def test_a_job_gives_its_setup_and_a_result_for_each_test(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    with BenchProcess(job(tests=("pp", "tg")), tmp_path / "log") as process:
        found = list(process.messages())
    (setup,) = (message for message in found if isinstance(message, Setup))
    assert setup.info.name == "tiny" and setup.info.kv_type == "f32"
    assert setup.flash_attention == "off" and setup.pool_tokens >= 8
    assert setup.read_bytes_per_s > 0
    tests = [message.test for message in found if isinstance(message, Measured)]
    assert tests == ["pp8", "tg4"]


def test_what_does_not_fit_the_context_is_skipped_with_both_numbers(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    with BenchProcess(job(tests=("tg", "depth"), depth_tokens=600), tmp_path / "log") as process:
        found = list(process.messages())
    (skipped,) = (message for message in found if isinstance(message, Skipped))
    assert skipped.test == "tg4 @ d600"
    assert "676" in skipped.reason and "512" in skipped.reason
    assert [message.test for message in found if isinstance(message, Measured)] == ["tg4"]


def test_tuning_tries_all_settings_and_chooses(job: Callable[..., Job], tmp_path: Path) -> None:
    # Heads of 16 cannot be stored in blocks of 32.
    with BenchProcess(job(tune=True, repeats=1, sessions=(1, 2)), tmp_path / "log") as process:
        found = list(process.messages())
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
    with (
        BenchProcess(job(**damage), tmp_path / "log") as process,
        pytest.raises(error),
    ):
        list(process.messages())


def test_a_damaged_file_is_a_typed_error(job: Callable[..., Job], tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_llama(tmp_path / "whole.gguf").read_bytes()[:1000])
    with (
        BenchProcess(job(spec=ModelSpec(str(path))), tmp_path / "log") as process,
        pytest.raises(CorruptFile),
    ):
        list(process.messages())


def test_a_process_that_dies_says_so_with_its_log(job: Callable[..., Job], tmp_path: Path) -> None:
    with BenchProcess(job(), tmp_path / "log") as process:
        messages = process.messages()
        next(messages)
        assert process.pid is not None
        _kill(process.pid)
        with pytest.raises(WorkerDied, match=r"SIGKILL|exit code") as died:
            list(messages)
    assert str(tmp_path / "log") in died.value.hint


def test_leaving_early_ends_the_process(job: Callable[..., Job], tmp_path: Path) -> None:
    with BenchProcess(job(repeats=50), tmp_path / "log") as process:
        next(process.messages())
        pid = process.pid
    assert pid is not None and process.pid is None


def test_it_runs_by_hand_from_a_file(job: Callable[..., Job], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_bytes(encode_job(job(tests=("tg",))))
    command = [sys.executable, "-P", "-m", "hearth.backends.bench", "--job", str(file)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert decode_message(done.stdout.splitlines()[-1]) == Done()


def test_a_job_that_cannot_be_read_is_a_problem() -> None:
    command = [sys.executable, "-P", "-m", "hearth.backends.bench"]
    done = subprocess.run(command, input=b"{}\n", capture_output=True, timeout=100)
    (problem,) = map(decode_message, done.stdout.splitlines())
    assert isinstance(problem, Problem) and problem.error.code == "invalid_parameter"


def _kill(pid: int) -> None:
    import psutil

    psutil.Process(pid).kill()
