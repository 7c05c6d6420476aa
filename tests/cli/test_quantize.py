"""`hearth quantize`: the plan, the file, what it says before and after, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_host
from gguf_builder import tiny_llama
from hearth.app.cli.output import Output, run_pausable
from hearth.app.exit_codes import ExitCode
from hearth.app.jobs import job
from hearth.app.jobs.child import STOPPED, Stopped
from hearth.backends.contract.events import Scores
from hearth.quant.gguf import preflight

DECODED = [[{"text": "x"}, {"finish": "length"}]] * 6


@pytest.fixture(autouse=True)
def wide(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose rows are made of long blocks; and a host that finds every token likely."""

    async def score(self: object, ids: list[int], **_: object) -> Scores:
        return Scores((-1.0,) * (len(ids) - 1))

    monkeypatch.setattr(fake_host.FakeBackend, "score", score)
    return tiny_llama(home / "data" / "models" / "wide-f16.gguf", dtype="f16", hidden=256, ffn=256)


@pytest.mark.parametrize(("phase", "where"), [("", "at 40%;"), ("training", "at 40% of training;")])
def test_a_pause_says_how_far_it_was(monkeypatch, capsys, phase, where) -> None:
    def interrupted(work, question, on_progress, log_dir):
        for done in (1, 2):
            values = {"done": done, "total": 5, "eta_s": None, "phase": phase, "note": "Resuming."}
            on_progress(values)
        raise Stopped(*STOPPED)

    monkeypatch.setattr(job, "run_job", interrupted)
    with pytest.raises(Stopped, match=f"{where} run the same command again") as stopped:
        run_pausable(Output(), lambda *_: {}, {"target": "/x/y.gguf"}, Path("/x"))
    assert stopped.value.data["share"] == 0.4
    assert capsys.readouterr().err == "Resuming.\n"


def test_dry_run_says_what_would_be_made(hearth, home) -> None:
    result = hearth("quantize", "wide-f16", "q4km", "--dry-run")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["TENSOR", "SHAPE", "FROM", "TO", "SIZE"]
    assert any(line.split()[0] == "output.weight" and "Q6_K" in line for line in lines)
    assert str(home / "data" / "models" / "wide-Q4_K_M.gguf") in result.out
    assert not (home / "data" / "models" / "wide-Q4_K_M.gguf").exists()
    facts = hearth("quantize", "wide-f16", "Q4_K_M", "--dry-run", "--json").json
    assert facts["type"] == "Q4_K_M" and facts["method"] == "gguf"
    assert {tensor["name"] for tensor in facts["tensors"]} >= {"token_embd.weight"}
    assert facts["bits_per_weight"] < 7 < 16 <= facts["source_bits_per_weight"]


def test_the_file_is_in_the_library_with_numbers_before_and_after(hearth, home) -> None:
    result = hearth("quantize", "wide-f16", "Q4_K_M", answers=DECODED)
    assert result.code == 0, result.err
    made = home / "data" / "models" / "wide-Q4_K_M.gguf"
    assert preflight.check(made).file_type_name == "Q4_K_M"
    assert json.loads(made.with_name(made.name + ".json").read_text())["recipe"]["type"] == "Q4_K_M"
    cells = [line.split() for line in result.out.splitlines()]
    assert cells[0] == ["BEFORE", "AFTER"]
    assert ["model", "wide-f16", "wide-Q4_K_M"] in cells
    assert ["perplexity", "2.718", "±", "0.000", "2.718", "±", "0.000"] in cells
    assert ["decode", "50.0", "tok/s", "50.0", "tok/s"] in cells
    assert "Perplexity +0.00%" in result.err
    assert [spec["path"] for spec in result.host.specs] == [
        str(home / "data" / "models" / "wide-f16.gguf"),
        str(made),
    ]
    listed = hearth("list", "--json").json["models"]
    assert next(m for m in listed if m["name"] == "wide-Q4_K_M")["file_type"] == "Q4_K_M"


def test_json_has_the_plan_the_result_and_both_measurements(hearth, tmp_path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("It was a dark and stormy night. " * 40)
    target = tmp_path / "out.gguf"
    result = hearth(
        *("quantize", "wide-f16", "Q8_0", "--output", str(target), "--text", str(text), "--json"),
        answers=DECODED,
    )
    facts = result.json
    assert facts["plan"]["size_bytes"] == facts["result"]["size_bytes"] == target.stat().st_size
    assert facts["text"] == str(text)
    assert facts["before"]["perplexity"] == facts["after"]["perplexity"]
    assert facts["perplexity_change"]["relative"] == 0
    assert len(facts["result"]["sha256"]) == 64


def test_without_the_check_no_model_is_loaded(hearth, tmp_path) -> None:
    target = tmp_path / "out.gguf"
    result = hearth("quantize", "wide-f16", "Q8_0", "-o", str(target), "--no-check")
    assert result.code == 0 and target.exists()
    assert result.host.attached == 0
    assert "perplexity" not in result.out


def test_tensors_get_the_types_that_are_asked_for(hearth, tmp_path) -> None:
    target = tmp_path / "out.gguf"
    result = hearth(
        *("quantize", "wide-f16", "Q4_K_M", "-o", str(target), "--no-check"),
        *("--tensor", "attn_v=F16", "--tensor", "^output=Q8_0"),
    )
    assert result.code == 0, result.err
    types = {tensor.name: tensor.type.name for tensor in preflight.check(target).tensors}
    assert types["output.weight"] == "Q8_0" and types["blk.0.attn_v.weight"] == "F16"


def test_a_file_in_the_way_is_replaced_with_yes(hearth, tmp_path) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")
    command = ("quantize", "wide-f16", "Q8_0", "-o", str(target), "--no-check")
    result = hearth(*command)
    assert result.code == ExitCode.FAILED and "--yes" in result.err
    assert target.read_bytes() == b"mine"
    assert hearth(*command, "--yes").code == 0
    assert preflight.check(target).file_type_name == "Q8_0"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("wide-f16", "Q9_K"), ExitCode.USAGE, "There is no type"),
        (("nothing-here", "Q4_K_M"), ExitCode.MODEL_NOT_FOUND, "nothing-here"),
        (("wide-f16", "IQ2_XXS", "--imatrix", "off"), ExitCode.FAILED, "importance matrix"),
        (("wide-f16", "F16", "--imatrix", "auto"), ExitCode.FAILED, "importance matrix"),
        (("wide-f16", "Q4_K_M", "--calibration", "missing.txt"), ExitCode.USAGE, "missing.txt"),
        (("wide-f16", "F16"), ExitCode.FAILED, "already"),
        (("wide-f16", "Q4_K_M", "--tensor", "attn_v"), ExitCode.USAGE, "PATTERN=TYPE"),
        (("wide-f16", "Q4_K_M", "--imatrix", "missing.dat"), ExitCode.USAGE, "missing.dat"),
        (("wide-f16", "Q4_K_M", "--threads", "0"), ExitCode.USAGE, "threads"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_made(
    hearth, home, arguments, code, said
) -> None:
    before = sorted((home / "data" / "models").iterdir())
    result = hearth("quantize", *arguments)
    assert result.code == code
    assert said in result.err
    assert sorted((home / "data" / "models").iterdir()) == before


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("backend", ["llamacpp", "native"])
def test_a_type_that_needs_an_importance_matrix_gets_one(hearth, home, tmp_path, backend) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("It was a dark and stormy night; the rain fell in torrents. " * 30)
    target = tmp_path / "out.gguf"
    command = ("quantize", "wide-f16", "IQ2_XXS", "-o", str(target), "--no-check", "--yes")
    options = ("--calibration", str(text), "--backend", backend)
    dry = hearth(*command, *options, "--dry-run", "--json").json
    assert dry["imatrix"] == "auto" and not target.exists()
    result = hearth(*command, *options)
    assert result.code == 0, result.err
    assert "importance matrix is made first" in result.err
    made = preflight.check(target)
    assert dry["size_bytes"] == target.stat().st_size
    assert made.value("quantize.imatrix.dataset") == "mine.txt"
    types = {tensor.name: tensor.type.name for tensor in made.tensors}
    assert types["blk.1.ffn_up.weight"] == "IQ2_XXS"
    (matrix,) = (home / "cache" / "imatrix").glob("*/wide-f16.imatrix.gguf")
    first = (matrix.stat().st_mtime_ns, target.read_bytes())
    assert hearth(*command, *options).code == 0
    assert (matrix.stat().st_mtime_ns, target.read_bytes()) == first
    text.write_text("Another text. " * 60)
    assert hearth(*command, *options, "--imatrix", "auto").code == 0
    assert len(list((home / "cache" / "imatrix").iterdir())) == 2


def test_a_text_that_is_too_short_for_a_matrix_is_refused(hearth, home, tmp_path) -> None:
    text, target = tmp_path / "mine.txt", tmp_path / "out.gguf"
    text.write_text("Too short.")
    command = ("quantize", "wide-f16", "IQ2_XS", "-o", str(target), "--no-check")
    result = hearth(*command, "--calibration", str(text))
    assert result.code == ExitCode.FAILED and "at least 32" in result.err
    assert not target.exists() and not list((home / "cache" / "imatrix").glob("*/*"))


def test_a_damaged_source_is_refused(hearth, wide) -> None:
    data = bytearray(wide.read_bytes())
    data[8] ^= 0xFF
    wide.write_bytes(data)
    result = hearth("quantize", "wide-f16", "Q4_K_M", "--json")
    assert result.code != 0
    assert result.json["error"]["code"] == "corrupt_file"


def test_a_text_that_is_no_text_is_a_wrong_usage(hearth, tmp_path) -> None:
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    result = hearth("quantize", "wide-f16", "Q8_0", "--text", str(tmp_path / "noise"))
    assert result.code == ExitCode.USAGE and "UTF-8" in result.err


def test_the_type_is_said_once_in_either_way(hearth) -> None:
    facts = hearth("quantize", "wide-f16", "--to", "q8_0", "--dry-run", "--json").json
    assert facts["type"] == "Q8_0"
    for typed in (("wide-f16",), ("wide-f16", "Q8_0", "--to", "Q6_K")):
        assert hearth("quantize", *typed).code == ExitCode.USAGE
