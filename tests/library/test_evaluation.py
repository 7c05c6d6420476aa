"""What the jobs of `hearth eval` find of real models, and the reports that are stored."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from hearth.app.jobs.child import Reporter
from hearth.app.library import evaluation
from hearth.app.library.compare_quality import Sample, bundled_sample
from hearth.app.library.evaluate_job import quality, quality_question, speed
from hearth.app.library.evaluation import Conditions, Judged
from hearth.app.library.local import FoundModel
from hearth.backends.bench.logits import as_dequantized
from hearth.backends.contract.models import ModelSpec
from hearth.quant.evaluation.errors import NotComparable
from hearth.quant.evaluation.estimates import Estimate
from hearth.quant.gguf.quantize_run import run
from quantizing import GUIDE, planned

CONDITIONS = Conditions(bundled_sample(for_guide=True), "second-half", 64, 400)


def judged(
    path: Path, cache: Path, *, served: str = "", conditions: Conditions = CONDITIONS, **extra: Any
) -> Judged:
    """As served by the runner `served`, or dequantized."""
    spec = ModelSpec(str(path), path.stem, served or "native")  # type: ignore[arg-type]
    question = quality_question(
        spec if served else as_dequantized(spec), cache, conditions.question(), **extra
    )
    answer = quality(json.loads(json.dumps(question)), Reporter(io.BytesIO()))
    return Judged(path.stem, "served" if served else "dequantized", answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    run(planned(GUIDE, "Q4_0"), folder / "q4_0.gguf")
    run(planned(folder / "q4_0.gguf", "F32", requantize=True), folder / "f32.gguf")
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    """The logits of `guide`, for `quality_question`."""
    kept = str(folder / "logits")
    found = judged(GUIDE, folder, keep=kept)
    assert Path(kept).stat().st_size == found.scored_tokens * 4096 * 4
    return {"path": kept, "tokens_sha256": found.answer["tokens_sha256"]}


def estimate(found: Judged, name: str) -> Estimate:
    return Estimate.read(found.facts()[name])


def test_a_model_does_not_diverge_from_itself(folder, reference) -> None:
    found = judged(GUIDE, folder, reference=reference)
    assert found.answer["counts"] == [31] * 6 and found.answer["window_tokens"] == 64
    assert estimate(found, "kl_divergence") == Estimate(0.0, 0.0)
    assert estimate(found, "same_top") == Estimate(1.0, 0.0)
    assert estimate(found, "rms_delta_p") == Estimate(0.0, 0.0)


def test_dequantized_logits_are_those_of_the_numbers_that_blocks_stand_for(folder) -> None:
    kept = str(folder / "dequantized")
    unpacked = judged(folder / "f32.gguf", folder, keep=kept)
    digest = unpacked.answer["tokens_sha256"]
    packed = judged(folder / "q4_0.gguf", folder, reference={"path": kept, "tokens_sha256": digest})
    assert estimate(packed, "kl_divergence").value < 1e-9


def test_runners_agree_and_quantization_is_worse_than_either(folder, reference) -> None:
    by = {name: judged(GUIDE, folder, served=name, reference=reference) for name in RUNNERS}
    assert [found.answer["runner"] for found in by.values()] == list(RUNNERS)
    packed = judged(folder / "q4_0.gguf", folder, reference=reference)
    loss = estimate(packed, "kl_divergence").value
    assert loss > 1e-3
    for found in by.values():
        assert estimate(found, "kl_divergence").value < 0.1 * loss
        assert estimate(found, "perplexity").value == pytest.approx(
            estimate(by["native"], "perplexity").value, rel=0.01
        )
    (gap, *_) = evaluation.comparisons([packed, by["native"]])
    assert (gap["better"], gap["than"], gap["of"]) == ("guide.f16", "q4_0", "kl_divergence")
    assert gap["is_certain"]


RUNNERS = ("llamacpp", "native")


def test_models_that_cut_the_text_otherwise_are_not_compared(folder, reference) -> None:
    wrong = {**reference, "tokens_sha256": "0" * 64}
    with pytest.raises(NotComparable, match="other tokens than the reference"):
        judged(GUIDE, folder, reference=wrong)
    other = Conditions(CONDITIONS.sample, "windows", 64, 400)
    alone = [judged(GUIDE, folder, conditions=one) for one in (CONDITIONS, other)]
    assert evaluation.comparisons(alone) == []
    assert alone[1].answer["counts"] == [63] * 6


def test_speed_is_measured_for_each_number_of_sessions(folder) -> None:
    spec = {"path": str(folder / "q4_0.gguf"), "name": "q", "backend": "native"}
    question = {"spec": spec, "cache_dir": str(folder), "sessions": [1, 2]}
    found = speed(question, Reporter(io.BytesIO()))
    assert set(found["tok_per_s"]) == {1, 2} and min(found["tok_per_s"].values()) > 0
    assert found["rss_bytes"] > 10 << 20


# ---- reports

ROW = {
    "name": "m",
    "logits": "dequantized",
    "perplexity": {"value": 12.5, "error": 0.25},
    "kl_divergence": {"value": 0.0125, "error": 0.0005},
    "same_top": {"value": 0.95, "error": 0.005},
}


def report(tmp_path: Path) -> dict[str, Any]:
    answer = {"window_tokens": 64, "counts": [31], "scores": {}}
    facts = evaluation.conditions_facts(
        Conditions(Sample("a.txt", "text"), "windows", 64, 400), Judged("m", "served", answer)
    )
    return {**facts, "reference": {"name": "big"}, "rows": [ROW], "comparisons": []}


def test_a_report_counts_until_the_model_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    assert evaluation.stored(path) is None
    assert evaluation.store(FoundModel("m", path, "library"), report(tmp_path), ROW)
    found = evaluation.stored(path)
    assert found is not None and found["row"] == ROW and "rows" not in found
    line = evaluation.words(found)
    assert "KL 0.01250 ± 0.00050 and same top token 95.0% ± 0.5% next to big" in line
    assert "perplexity 12.500 ± 0.250" in line and "windows of 64 on a.txt" in line
    os.utime(path, ns=(1, 1))
    assert evaluation.stored(path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 1}', '{"format": 9}', "[" * 100_000]
)
def test_a_damaged_report_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    evaluation.report_path(path).write_text(content)
    assert evaluation.stored(path) is None


def test_nothing_is_written_next_to_what_belongs_to_others(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    for origin in ("bundled", "ollama", "huggingface"):
        assert not evaluation.store(FoundModel("m", path, origin), report(tmp_path), ROW)
    assert list(tmp_path.iterdir()) == [path]


def test_an_impossible_text_has_infinite_perplexity_and_is_json(tmp_path: Path) -> None:
    answer = {
        "counts": [20],
        "scores": {"losses": [1000.0] * 20, "divergences": []},
        **dict.fromkeys(
            ("runner", "runner_version", "quantization", "threads", "notices", "wall_s"), 1
        ),
    }
    facts = Judged("m", "served", answer).facts()
    assert facts["perplexity"] == {"value": None, "error": None}
    assert Estimate.read(facts["perplexity"]).value == math.inf
    assert "kl_divergence" not in facts
