"""The results of `hearth eval`, and the reports that it stores next to models.

A report is `MODEL.eval.json` next to the file or folder MODEL: the conditions, the reference, and
the row of this model; see docs/eval.md. It is valid as long as the model's files are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hearth.app.library.model_files import files_of, read_start
from hearth.backends.machine.cpu import cpu_name
from hearth.quant.evaluation import estimates
from hearth.quant.evaluation.estimates import Estimate
from hearth.quant.evaluation.protocols import Protocol

if TYPE_CHECKING:
    from hearth.app.library.compare_quality import Sample
    from hearth.app.library.local import FoundModel, LocalModel

Source = Literal["dequantized", "served"]
"""How logits are computed: with weights dequantized to float32, or as requests are served.

The former shows the effect of the quantization method alone, the latter includes the kernels.
"""
SUFFIX: Final = ".eval.json"
STORED_NEXT_TO: Final = ("library", "path")
"""Origins of models next to which a report may be written; others belong to other programs."""
_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Conditions:
    """The text and method of measurements; only results of equal conditions can be compared."""

    sample: Sample
    protocol: Protocol
    context: int
    """Maximum number of tokens in a window."""
    tokens: int
    """Maximum number of tokens of the text."""

    def question(self) -> dict[str, Any]:
        """The conditions for `evaluate_job.quality_question`."""
        fields = asdict(self)
        return {**fields.pop("sample"), **fields}


@dataclass(frozen=True, slots=True)
class Judged:
    """The measurements of one model.

    Attributes:
        name: name of the row.
        logits: how the logits were computed.
        answer: the answer of `evaluate_job.quality`.
    """

    name: str
    logits: Source
    answer: Mapping[str, Any]

    @property
    def blocks(self) -> list[int]:
        """The blocks over which standard errors are computed."""
        return estimates.blocks_of(self.answer["counts"])

    @property
    def scored_tokens(self) -> int:
        return sum(self.answer["counts"])

    def scores(self, name: str) -> list[float]:
        """The field `name` of `TokenScores`."""
        values: list[float] = self.answer["scores"][name]
        return values

    def facts(self) -> dict[str, Any]:
        """As JSON values: the estimates, and the runner and settings that they were made with."""
        figures = {"perplexity": estimates.perplexity(self.scores("losses"), self.blocks)}
        if self.scores("divergences"):
            figures |= {
                "kl_divergence": estimates.mean(self.scores("divergences"), self.blocks),
                "same_top": estimates.mean(self.scores("same_top"), self.blocks),
                "rms_delta_p": estimates.root_mean_square(self.scores("shifts"), self.blocks),
            }
        by = ("runner", "runner_version", "quantization", "threads", "notices", "wall_s")
        return {
            "name": self.name,
            "logits": self.logits,
            **{name: self.answer[name] for name in by},
            **{name: estimate.facts() for name, estimate in figures.items()},
        }


def comparisons(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """A comparison of each pair of models that have the same tokens.

    It is {"better": the model with the lower value, "than", "of": "kl_divergence", or "nll" without
    a reference, "difference", "is_certain"}. The difference is computed token by token, and certain
    beyond three standard errors.
    """
    compared = []
    for number, one in enumerate(judged):
        for other in judged[number + 1 :]:
            if one.answer["tokens_sha256"] != other.answer["tokens_sha256"]:
                continue
            what = "divergences" if one.scores("divergences") else "losses"
            gap = estimates.difference(other.scores(what), one.scores(what), one.blocks)
            better, than = (one, other) if gap.value <= 0 else (other, one)
            gap = Estimate(-abs(gap.value), gap.error)
            compared.append(
                {
                    "better": better.name,
                    "than": than.name,
                    "of": "kl_divergence" if what == "divergences" else "nll",
                    "difference": gap.facts(),
                    "is_certain": gap.is_below_zero,
                }
            )
    return compared


def conditions_facts(conditions: Conditions, judged: Judged) -> dict[str, Any]:
    """The conditions as JSON values, including the resulting numbers of windows and tokens."""
    text = conditions.sample.text.encode()
    return {
        "format": _FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hearth": metadata.version("hearth-llm"),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.platform()},
        "text": {
            "name": conditions.sample.name,
            "size_bytes": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
        },
        "protocol": {
            "name": conditions.protocol,
            "window_tokens": judged.answer["window_tokens"],
            "windows": len(judged.answer["counts"]),
            "scored_tokens": judged.scored_tokens,
            "error_block_tokens": estimates.block_tokens(judged.scored_tokens),
        },
    }


def weights_facts(path: Path) -> dict[str, Any]:
    """Facts about the weights of the model at `path`, from the headers alone.

    {"size_bytes", "bits_per_weight", "types": the share of each type in the bytes of all tensors}.

    Raises:
        CorruptFile, UnsupportedModel, OSError: the headers cannot be used.
    """
    if path.is_dir():
        from hearth.backends.native.model_folder import read_model_folder

        folder = read_model_folder(path)
        stored, parameters, size = list(folder.tensors), folder.parameters, folder.size_bytes
    else:
        from hearth.quant.gguf import preflight

        header = preflight.check(path)
        stored = [tensor.stored for tensor in header.all_tensors]
        parameters = header.parameter_count
        size = sum(part.size_bytes for part in (header, *header.shards))
    sizes = Counter[str]()
    for tensor in stored:
        sizes[tensor.kind] += tensor.nbytes
    total = sizes.total()
    return {
        "size_bytes": size,
        "bits_per_weight": round(8 * total / max(1, parameters), 3),
        "types": {kind: round(nbytes / total, 4) for kind, nbytes in sizes.most_common()},
    }


# ---- stored reports


def report_path(model: Path) -> Path:
    """The path of the report of the model at `model`."""
    return model.with_name(model.name + SUFFIX)


def store(model: FoundModel, report: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Store the `row` of one model and the conditions of `report` in the model's report.

    Returns False if the model belongs to another program, or comes with Hearth.

    Raises:
        OSError: the report cannot be written.
    """
    from hearth.backends.machine.atomic_files import write_json

    if model.origin not in STORED_NEXT_TO:
        return False
    kept = {name: value for name, value in report.items() if name not in ("rows", "comparisons")}
    write_json(report_path(model.path), {**kept, "model": _stamp(model.path), "row": row})
    return True


def stored(model: Path) -> dict[str, Any] | None:
    """The report of the model at `model`; None if there is none, or the model has changed."""
    try:
        facts = json.loads(read_start(report_path(model), _MOST_BYTES))
        is_current = facts["format"] == _FORMAT and facts["model"] == _stamp(model)
        return facts if is_current and words(facts) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def words(report: Mapping[str, Any]) -> str:
    """A stored report in one line. Raises Python's errors if `report` is malformed."""
    row, protocol = report["row"], report["protocol"]
    perplexity = Estimate.read(row["perplexity"])
    parts = [f"perplexity {perplexity.value:.3f} ± {perplexity.error:.3f}"]
    if row.get("kl_divergence"):
        divergence, same = Estimate.read(row["kl_divergence"]), Estimate.read(row["same_top"])
        parts = [
            f"KL {divergence.value:.5f} ± {divergence.error:.5f} and same top token "
            f"{same.value:.1%} ± {same.error:.1%} next to {report['reference']['name']}",
            *parts,
        ]
    window = f"{protocol['name']} of {protocol['window_tokens']:,}"
    parts += [f"{window} on {report['text']['name']}", f"{row['logits']}, {report['date'][:10]}"]
    return ", ".join(parts)


def stored_words(models: Sequence[LocalModel]) -> dict[str, str]:
    """For each of `models` that has a report, a sentence about it, by name. Reads the reports."""
    reports = {model.name: stored(model.path) for model in models if not model.url}
    return {name: f"Measured: {words(report)}." for name, report in reports.items() if report}


def _stamp(model: Path) -> dict[str, Any]:
    """Size and modification time, which change when a file of the model does."""
    files = [path.stat() for path in files_of(model)]
    return {
        "size_bytes": sum(file.st_size for file in files),
        "changed_ns": max(file.st_mtime_ns for file in files),
    }
