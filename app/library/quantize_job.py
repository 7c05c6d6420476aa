"""The job that quantizes, run by `hearth.app.jobs` in a process of its own.

The question: {"method": "gguf", "source": path, "type": "Q4_K_M", "target": path, "options": {...},
"threads": n, "replace": bool}; for methods that write folders, "type" is the method's name again.
Progress: {"done": bytes, "total": bytes, "tensor": name, "eta_s": seconds or null, "note": how an
earlier run is used, or "", "phase": the work before anything is packed, or ""}. The answer:
{"path", "manifest", "size_bytes", "sha256", "facts", "wall_s"}. A job that was stopped or killed
continues when it is started again with the same question.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hearth.app.jobs.child import Reporter
from hearth.app.library.importance import matrix_for
from hearth.app.library.quantize_methods import method_named
from hearth.app.paths import find_paths
from hearth.backends.errors import ModelNotFound
from hearth.quant.gguf.quantize import QuantizePlan

_ETA_AFTER_S: Final = 1.0
"""Time after which the remaining time can be estimated."""
_FULL_PRECISION: Final = re.compile(r"[-._](f16|bf16|f32|fp16|fp32)$", re.IGNORECASE)


def file_name(source: str, kind: str, suffix: str) -> str:
    """The default name of the file that is made from the model called `source`."""
    stem = _FULL_PRECISION.sub("", Path(source).name)
    return f"{stem}-{kind}{suffix}"


def question(
    *,
    method: str,
    source: str,
    type: str,  # noqa: A002 - what people call it
    options: Mapping[str, Any],
    target: Path,
    replace: bool,
    threads: int | None = None,
) -> dict[str, Any]:
    """The question for the job, which uses all physical cores unless `threads` is given."""
    import psutil

    return {
        "method": method,
        "source": source,
        "type": type,
        "target": str(target),
        "options": dict(options),
        "threads": threads or psutil.cpu_count(logical=False) or 1,
        "replace": replace,
    }


def plan(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The facts of the job's plan, tensor by tensor.

    For methods that must read weights to plan, which programs without torch cannot do.

    Raises:
        HearthError: the model cannot be quantized like this.
    """
    method, options = method_named(question["method"]), question["options"]
    planned = method.plan(Path(question["source"]), question["type"], options)
    return planned.facts(tensors=True)


def quantize(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Do what `question` asks.

    Raises:
        Stopped: the job was stopped; the tensors that are complete are kept.
        HearthError: the model cannot be quantized.
    """
    started = time.monotonic()
    method = method_named(question["method"])
    notes: list[str] = []
    resumed_at: int | None = None
    packing_since = started

    def show(done: int, total: int, tensor: str) -> None:
        nonlocal resumed_at, packing_since
        if resumed_at is None or done <= resumed_at:  # Opening and reading models is not counted.
            resumed_at, packing_since = done, time.monotonic()
        spent, processed = time.monotonic() - packing_since, done - resumed_at
        eta_s = spent * (total - done) / processed if processed and spent >= _ETA_AFTER_S else None
        note = " ".join(notes)
        reporter.progress(done=done, total=total, tensor=tensor, eta_s=eta_s, note=note, phase="")

    def show_pass(done: int, total: int) -> None:
        spent = time.monotonic() - started
        phase = f"importance matrix, window {done} of {total}"
        reporter.progress(
            done=0,
            total=planned.source_bytes,
            tensor=phase,
            eta_s=spent * (total - done) / done if done else None,
            note=" ".join(notes),
            phase=phase,
        )

    source, options = Path(question["source"]), question["options"]
    if not source.exists():
        raise ModelNotFound(
            f"The source {source} does not exist.",
            "Put it back and start again, or cancel what was begun.",
            path=str(source),
        )
    planned = method.plan(source, question["type"], options)
    if isinstance(planned, QuantizePlan) and planned.makes_matrix:
        matrix = matrix_for(
            planned,
            options,
            find_paths(),
            threads=question["threads"],
            on_window=show_pass,
            on_note=notes.append,
            check=reporter.check,
        )
        planned = method.plan(source, question["type"], {**options, "imatrix": str(matrix)})
    reporter.check()
    result = method.run(
        planned,
        Path(question["target"]),
        threads=question["threads"],
        replace=question["replace"],
        on_progress=show,
        on_note=notes.append,
        check=reporter.check,
    )
    return {
        "path": str(result.path),
        "manifest": str(result.manifest),
        "size_bytes": result.size_bytes,
        "sha256": result.sha256,
        "facts": result.facts,
        "wall_s": round(time.monotonic() - started, 3),
    }
