"""The job that checks every weight of a model, run by `hearth.app.jobs` in a process of its own.

The question: {"path": a GGUF file or a folder of safetensors}. Progress: {"done": bytes, "total":
bytes}. The answer: {"family": text, "skipped": names, "unknown": names, "tensors": n,
"size_bytes": n, "not_finite": [{"name", "rows", "first_row"}], "unread": names, "wall_s": seconds}.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hearth.app.jobs.child import Reporter


def verify(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Check first whether the files fit together, then every number.

    Raises:
        Stopped: the job was stopped.
        CorruptFile, UnsupportedModel: the model breaks its format, or no runner can run it.
        OSError: a file cannot be read.
    """
    from hearth.backends.native.structure import check_structure
    from hearth.quant.verify import verify_model

    started = time.monotonic()
    path = Path(question["path"])

    def report_progress(done: int, total: int) -> None:
        reporter.check()
        reporter.progress(done=done, total=total)

    structure = check_structure(path)
    report = verify_model(path, report_progress)
    return {
        **asdict(structure),
        "tensors": report.tensors,
        "size_bytes": report.nbytes,
        "not_finite": [asdict(problem) for problem in report.not_finite],
        "unread": list(report.unread),
        "wall_s": round(time.monotonic() - started, 3),
    }
