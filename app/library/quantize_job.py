"""The process that quantizes: `python -m hearth.app.library.quantize_job`, by `hearth.app.jobs`.

The question: {"method": "gguf", "source": path, "type": "Q4_K_M", "target": path, "options": {...},
"threads": n, "replace": bool}. Progress: {"done": bytes, "total": bytes, "tensor": name, "eta_s":
seconds or null}. The answer: {"path", "manifest", "size_bytes", "sha256", "facts", "wall_s"}.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth.app.library.errors import FileTrouble
from hearth.quant.methods import methods

if TYPE_CHECKING:
    from hearth.app.jobs.child import Reporter

MODULE: Final = "hearth.app.library.quantize_job"
_ETA_AFTER_S: Final = 1.0
"""Before that, what is left cannot be told from what was done."""


def quantize(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Do what `question` asks.

    Raises:
        Stopped: it was told to.
        HearthError: why it cannot be done.
    """
    started = time.monotonic()
    method = methods().named(question["method"])

    def tell(done: int, total: int, tensor: str) -> None:
        spent = time.monotonic() - started
        eta_s = spent * (total - done) / done if done and spent >= _ETA_AFTER_S else None
        reporter.progress(done=done, total=total, tensor=tensor, eta_s=eta_s)

    try:
        plan = method.plan(Path(question["source"]), question["type"], question["options"])
        made = method.run(
            plan,
            Path(question["target"]),
            threads=question["threads"],
            replace=question["replace"],
            on_progress=tell,
            check=reporter.check,
        )
    except OSError as error:
        raise FileTrouble(
            f"{error.filename or question['target']}: {error.strerror or error}.",
            "Check the path and its permissions, or write to another one (--output).",
        ) from error
    return {
        "path": str(made.path),
        "manifest": str(made.manifest),
        "size_bytes": made.size_bytes,
        "sha256": made.sha256,
        "facts": made.facts,
        "wall_s": round(time.monotonic() - started, 3),
    }


if __name__ == "__main__":
    from hearth.app.jobs.child import serve

    serve(quantize)
