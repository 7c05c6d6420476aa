"""`hearth train-medusa`: the file it makes, what it refuses, and that a killed job goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hearth.app.exit_codes import ExitCode
from hearth.app.library.heads_job import question
from hearth.app.paths import find_paths
from hearth.backends.contract.models import ModelSettings, ModelSpec, heads_path
from hearth.backends.native.heads import read_heads

GUIDE = Path(str(files("hearth.assets"))) / "guide" / "guide.f16.gguf"
JOB = ("hearth.app.jobs.child", "hearth.app.library.heads_job", "train")
FEW = ("--heads", "2", "--epochs", "1", "--threads", "1")


def test_heads_from_questions_that_the_model_answers(hearth, home: Path) -> None:
    asked, made = home / "asked.txt", home / "x.medusa.safetensors"
    asked.write_text("How do I download a model?\n\nWhat is quantization?\n" * 12)
    arguments = ("train-medusa", "guide", "--self", "--text", asked, "--tokens", "300")
    result = hearth(*map(str, arguments), *FEW, "-o", str(made), "--json")
    assert result.code == 0, result.err
    weights = read_heads(made, 256, 4096)
    assert weights.count == result.json["heads"] == len(result.json["accepted"]) == 2
    assert weights.vocabulary is not None
    assert len(weights.vocabulary) == result.json["vocabulary"]
    assert not list((home / "cache" / "medusa").glob("*"))
    assert hearth(*map(str, arguments), "-o", str(made)).code == ExitCode.USAGE


def test_what_cannot_be_trained(hearth, home: Path) -> None:
    assert "--self, or --text" in hearth("train-medusa", "guide").err
    nowhere = hearth("train-medusa", "guide", "--self", "-o", str(home / "none" / "x"))
    assert nowhere.code == ExitCode.USAGE and "no folder" in nowhere.err
    short = home / "short.txt"
    short.write_text("A few words.")
    result = hearth("train-medusa", "guide", "--text", str(short), "-o", str(home / "x"), *FEW)
    assert result.code != 0
    assert "at least 256 are needed" in result.err


def run(asked: dict[str, Any], lines: int | None) -> dict[str, Any]:
    """Runs the job, and kills it after so many lines of progress; returns the last line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *JOB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    last: dict[str, Any] = {}
    for number, line in enumerate(process.stdout):
        last = json.loads(line)
        if number == lines:
            process.kill()
            break
    process.wait()
    process.stdin.close()
    process.stdout.close()
    return last


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_job_makes_the_same_heads(home: Path) -> None:
    made = []
    for name, kills in (("whole", ()), ("killed", (0, 2))):
        asked = question(
            ModelSpec(str(GUIDE), settings=ModelSettings(threads=1, batch_threads=1)),
            [GUIDE],
            find_paths(),
            text=(files("hearth.assets") / "texts" / "guide.txt").read_text(encoding="utf-8"),
            is_self=False,
            are_questions=False,
            target=home / f"{name}.medusa.safetensors",
            options={"heads": 2, "epochs": 1},
        )
        for lines in kills:
            assert "done" not in run(asked, lines) and Path(asked["folder"]).is_dir()
        last = run(asked, None)
        assert last["done"]["tokens"] > 1000
        made.append((home / f"{name}.medusa.safetensors").read_bytes())
    assert made[0] == made[1]


def test_where_heads_are_looked_for(tmp_path: Path) -> None:
    assert heads_path(GUIDE).is_file()
    assert heads_path(tmp_path) == tmp_path / "medusa_lm_head.safetensors"
