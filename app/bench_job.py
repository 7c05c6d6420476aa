"""Measures a model in a separate process: a `Job` goes in, `Message`s come back one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec

from hearth.app.jobs.child import Reporter
from hearth.app.jobs.job import follow_job
from hearth.backends.bench.job import Job, Message

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def run_bench(job: Job, take: Callable[[Message], None], log_dir: Path) -> None:
    """Run the measurements of `job`; Ctrl+C ends the process at once.

    Args:
        take: called with each message when it arrives.

    Raises:
        HearthError: the error that ended the measurement.
    """

    def on_progress(values: dict[str, Any]) -> None:
        take(msgspec.convert(values["message"], _KINDS[values["kind"]]))

    asyncio.run(follow_job(measure, {"job": asdict(job)}, on_progress, log_dir))


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """In the child process: run `question["job"]` and report each message at once."""
    from hearth.backends.bench.ablate import ablate
    from hearth.backends.bench.session import run_tests
    from hearth.backends.bench.speculation import speculate
    from hearth.backends.bench.tune import tune

    job = msgspec.convert(question["job"], Job)
    make = run_tests
    if job.tune or job.ablate or job.speculate:
        make = tune if job.tune else ablate if job.ablate else speculate
    for message in make(job):
        reporter.report_now(kind=type(message).__name__, message=asdict(message))
        reporter.check()
    return {}
