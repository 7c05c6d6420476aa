"""Jobs that make a folder and are killed: asked again, they make the same bytes."""

from __future__ import annotations

import functools
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_folder import write_folder
from hearth.app.jobs.child import Reporter
from hearth.app.library import quantize_job
from hearth.app.library.quantize_methods import CONVERT, all_methods, method_named
from hearth.backends.errors import ModelNotFound, UnsupportedModel
from hearth.quant.gguf.quantize_file import unfinished_in
from quantizing import GUIDE, smollm2

JOB = ("hearth.app.jobs.child", "hearth.app.library.quantize_job", "quantize")
METHODS = [one.name for one in all_methods() if not one.suffix]
CALIBRATION = {"samples": 8, "seq-len": 64}


def asked(question: dict[str, Any], lines: int | None) -> tuple[dict[str, Any], int]:
    """Runs the job, and kills it after so many lines of progress; returns the last line, and how
    many there were.
    """
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
    number = 0
    for number, line in enumerate(process.stdout):
        last = json.loads(line)
        if number == lines:
            process.kill()
            break
    process.stdout.close()
    process.wait()
    process.stdin.close()
    return last, number


def kill_at_random(
    gguf: Path, folder: Path, method: str, times: int, seed: int, **options: Any
) -> None:
    """Into files of a megabyte, so that there are several."""
    source = write_folder(gguf, folder / "source", "f16")
    known = {one.name for one in method_named(method).options}
    options |= {name: value for name, value in CALIBRATION.items() if name in known}
    if method in ("int8", "fp8"):
        options.pop("group", None)  # A scale for each row.

    def question(target: Path, method: str = method, **options: Any) -> dict[str, Any]:
        return quantize_job.question(
            method=method,
            source=str(source),
            type=method,
            options={**options, "file-mb": 1},
            target=target,
            replace=True,
            threads=1,
        )

    if method == CONVERT:
        packed, group = folder / "packed", options.pop("group", 128)
        asked(question(packed, "int4", group=group, format="gptq"), None)
        source, options = packed, {"format": "awq"}
    ask = functools.partial(question, **options)

    (last, count) = asked(ask(folder / "whole"), None)
    whole = last["done"]
    target, rng, written = folder / "made", random.Random(seed), 0
    for attempt in range(times + 20):
        if attempt >= times and written:  # A job tells less often on a busy machine.
            break
        asked(ask(target), rng.randrange(0, max(2, count)))
        written = max([written, *(one.done_bytes for one in unfinished_in(folder))])
    assert written, "it was never killed while it wrote"
    last = asked(ask(target), None)[0]["done"]
    assert last["sha256"] == whole["sha256"]
    assert last["facts"]["recipe"] == whole["facts"]["recipe"]
    assert len(list((folder / "whole").glob("*.safetensors"))) > 1
    for path in (folder / "whole").iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(("method", "is_there"), [("gguf", False), ("gptq", False), ("gptq", True)])
def test_a_source_that_is_gone_is_named(method: str, is_there: bool, tmp_path: Path) -> None:
    """It, or what was in its folder, was deleted while the job was paused."""
    source = tmp_path / "model.gguf"
    if is_there:
        source.mkdir()
    question = quantize_job.question(
        method=method,
        source=str(source),
        type="Q4_K_M" if method == "gguf" else method,
        options={},
        target=tmp_path / "made",
        replace=False,
    )
    with pytest.raises((ModelNotFound, UnsupportedModel), match=str(source)):
        quantize_job.quantize(question, Reporter(io.BytesIO()))


@pytest.mark.timeout(300)
def test_killed_at_any_point_it_goes_on(tmp_path: Path) -> None:
    kill_at_random(GUIDE, tmp_path, "gptq", 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_thirty_points_it_goes_on(method: str, tmp_path: Path) -> None:
    kill_at_random(GUIDE, tmp_path, method, 30, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", [*METHODS, CONVERT])
def test_killed_while_it_quantizes_smollm2_it_goes_on(method: str, tmp_path: Path) -> None:
    kill_at_random(smollm2(), tmp_path, method, 5, seed=3, group=64)
