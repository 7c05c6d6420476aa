"""The process that measures one runner with one kind of model: `python -m hearth.app.speed_job`, by
`hearth.app.jobs`.

The question: {"runner": "llamacpp" or "native", "kind": "Q4_K", "cache_dir": path}. The answer:
{"prefill": tokens a second, "decode": tokens a second}.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hearth.app.jobs.child import Reporter

MODULE: Final = "hearth.app.speed_job"


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Do what `question` asks. Raises `HearthError` where that runner cannot."""
    from hearth.backends.bench.speed_probe import measure_runner

    reporter.check()
    found = measure_runner(question["runner"], question["kind"], Path(question["cache_dir"]))
    return asdict(found)


if __name__ == "__main__":
    from hearth.app.jobs.child import serve

    serve(measure)
