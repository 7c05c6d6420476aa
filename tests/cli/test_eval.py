"""`hearth eval`: tables of named models and of methods, what is stored, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.app.exit_codes import ExitCode
from hearth.app.library import evaluate_job
from hearth.quant.gguf.quantize_run import run
from quantizing import GUIDE, planned

FEW = ("--tokens", "130", "--context", "64", "--threads", "1")


@pytest.fixture
def packed(home: Path) -> Path:
    path = home / "data" / "models" / "small.gguf"
    run(planned(GUIDE, "Q4_0"), path)
    return path


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch, one_process: None) -> None:
    """Little is decoded."""
    monkeypatch.setattr(evaluate_job, "_PROMPT_TOKENS", 8)
    monkeypatch.setattr(evaluate_job, "_NEW_TOKENS", 2)


def test_a_model_next_to_its_reference_is_measured_stored_and_shown(
    hearth, packed, tmp_path
) -> None:
    drawn = tmp_path / "drawn.svg"
    result = hearth("eval", "small", "--reference", "guide", *FEW, "--svg", str(drawn))
    assert result.code == 0, result.err
    assert f"{drawn} was drawn" in result.err and drawn.read_text().count("<circle") == 1
    title, row = (line.split() for line in result.out.splitlines())
    assert title[:3] == ["MODEL", "LOGITS", "SIZE"] and row[:2] == ["small", "served"]
    assert "Protocol second-half: 2 windows of 64 tokens, 62 scored" in result.err
    assert "Reference: guide, dequantized, perplexity" in result.err
    report = json.loads(packed.with_name("small.gguf.eval.json").read_text())
    assert report["row"]["kl_divergence"]["value"] > 0
    assert report["text"]["name"] == "bundled guide.txt"
    shown = hearth("show", "small")
    assert "evaluated" in shown.out and "next to guide" in shown.out
    assert hearth("show", "small", "--json").json["evaluation"]["row"] == report["row"]
    assert hearth("rm", "small", "--yes").code == 0
    assert list(packed.parent.glob("small*")) == []


def test_methods_are_made_measured_and_deleted(hearth, home, brief) -> None:
    result = hearth("eval", "guide", "--methods", "bf16,gguf:Q4_0", *FEW, "--json")
    assert result.code == 0, result.err
    report = result.json
    assert [row["name"] for row in report["rows"]] == [
        *("f32, again", "bf16, as served", "bf16", "gguf:Q4_0")
    ]
    again, half, *made = report["rows"]
    assert again["kl_divergence"] == {"value": 0.0, "error": 0.0}
    assert half["logits"] == "served" and half["kl_divergence"]["value"] > 0
    losses = [row["kl_divergence"]["value"] for row in made]
    assert losses == sorted(losses)
    assert made[0]["types"]["BF16"] > 0.99 and set(made[1]["types"]) == {"Q4_0", "Q6_K", "F32"}
    for row in made:
        assert set(row["speed"]["tok_per_s"]) == {"1", "8"}
        assert row["speed"]["ratio_to_bf16"]["1"] > 0 and row["speed"]["rss_bytes"] > 1 << 20
        assert row["logits"] == "dequantized"
    assert made[0]["speed"]["ratio_to_bf16"] == {"1": 1.0, "8": 1.0}
    assert len(report["comparisons"]) == 6
    assert list((home / "cache").glob("eval-*")) == []


def test_what_methods_make_can_be_kept(hearth, home, tmp_path, brief) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = home / "cache" / f"eval-{process.pid}-killed"  # By a command that is gone.
    (left / "variants").mkdir(parents=True)
    folder = tmp_path / "made"
    command = ("eval", "guide", "--methods", "Q4_0", "-o", str(folder), "--no-speed", *FEW)
    result = hearth(*command)
    assert result.code == 0, result.err
    assert {path.name for path in folder.iterdir()} == {
        *("guide-Q4_0.gguf", "guide-Q4_0.gguf.json", "guide-Q4_0.gguf.eval.json")
    }
    assert "TOK/S" not in result.out and not left.exists()
    result = hearth(*command)
    assert result.code == ExitCode.FAILED and "guide-Q4_0.gguf exists" in result.err
    assert hearth(*command, "--yes").code == 0
    below = str(folder / "guide-Q4_0.gguf" / "x")
    result = hearth("eval", "guide", "--methods", "Q4_0", "-o", below, "--json")
    assert (
        result.json["error"]["code"] == "file_trouble" and below in result.json["error"]["message"]
    )


def test_without_a_reference_models_are_compared_by_likelihood(hearth, packed, brief) -> None:
    report = hearth("eval", "guide", "small", "--protocol", "windows", *FEW, "--json").json
    assert report["protocol"]["name"] == "windows" and report["reference"] is None
    assert all("kl_divergence" not in row for row in report["rows"])
    assert [one["of"] for one in report["comparisons"]] == ["nll"]


def test_one_model_that_cannot_be_measured_does_not_end_the_rest(hearth, packed, brief) -> None:
    result = hearth("eval", "tiny", "small", "--reference", "guide", *FEW, "--json")
    assert result.code == ExitCode.FAILED
    wrong, right = result.json["rows"]
    assert wrong["error"]["code"] == "not_comparable" and right["perplexity"]["value"] > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("guide", "guide", "--methods", "Q4_0"), "one MODEL"),
        (("guide", "--methods", "Q4_0", "--reference", "guide"), "one MODEL"),
        (("guide", "--methods", " ,"), "names no method"),
        (("guide", "--methods", ""), "names no method"),
        (("guide", "--requantize"), "go with --methods"),
        (("guide", "--methods", "Q4_X"), "Q4_X"),
        (("guide", "--methods", "magic:Q4_0"), 'no quantization method "magic"'),
        (("guide", "--methods", "Q4_0,Q8_0,gguf:q4_0"), "the same file as Q4_0"),
        (("guide", "--context", "4"), "--context"),
        (("guide", "--svg", "x.svg"), "need --reference or --methods"),
        (("guide", "--reference", "guide", "--svg", "none/x.svg"), "no folder"),
    ],
)
def test_what_cannot_be_done_is_refused(hearth, arguments, words) -> None:
    result = hearth("eval", *arguments)
    assert result.code == 2 and words in result.err
