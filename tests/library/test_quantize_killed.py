"""Jobs that make a folder and are killed: asked again, they make the same bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_folder import write_folder
from hearth.app.library import quantize_job
from hearth.quant.gguf.quantize_file import unfinished_in
from quantizing import GUIDE

JOB = ("hearth.app.jobs.child", "hearth.app.library.quantize_job", "quantize")
OPTIONS: dict[str, dict[str, Any]] = {
    "int4": {},
    "gptq": {"samples": 8, "seq-len": 64},
    "best": {"samples": 8, "seq-len": 64},
}


def asked(question: dict[str, Any], lines: int | None) -> dict[str, Any]:
    """Runs the job, and kills it after so many lines of progress; returns the last line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *JOB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    last: dict[str, Any] = {}
    for number, line in enumerate(process.stdout):
        last = json.loads(line)
        if number == lines:
            process.kill()
            break
    process.stdout.close()
    process.wait()
    process.stdin.close()
    return last


def kill_at_random(folder: Path, method: str, times: int, seed: int) -> None:
    source = write_folder(GUIDE, folder / "guide", "f16")

    def question(target: Path) -> dict[str, Any]:
        return quantize_job.question(
            method=method,
            source=str(source),
            type=method,
            options=OPTIONS[method],
            target=target,
            replace=True,
            threads=1,
        )

    whole = asked(question(folder / "whole"), None)["done"]
    target, rng, written = folder / "made", random.Random(seed), 0
    for _ in range(times):
        asked(question(target), rng.randrange(0, 12))
        written = max([written, *(one.done_bytes for one in unfinished_in(folder))])
    assert written, "it was never killed while it wrote"
    last = asked(question(target), None)["done"]
    assert last["sha256"] == whole["sha256"]
    assert last["facts"]["recipe"] == whole["facts"]["recipe"]
    for path in (folder / "whole").iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert not list(folder.glob(".*"))


@pytest.mark.timeout(300)
def test_killed_at_any_point_it_goes_on(tmp_path: Path) -> None:
    kill_at_random(tmp_path, "gptq", 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("method", ["int4", "gptq", "best"])
def test_killed_at_thirty_points_it_goes_on(method: str, tmp_path: Path) -> None:
    kill_at_random(tmp_path, method, 30, seed=2)
