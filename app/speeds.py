"""Measures which runner is faster on this machine, for each kind of GGUF in the library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hearth.app.jobs.child import Reporter, Stopped
from hearth.app.jobs.job import run_job
from hearth.app.library.local import Library
from hearth.backends.errors import HearthError
from hearth.backends.worker.choice import not_native
from hearth.backends.worker.speeds import Measured, Speed, Speeds, kind_of
from hearth.quant.gguf import preflight


def kinds_here(library: Library) -> list[str]:
    """The kinds of the GGUFs in `library` that both runners can run."""
    kinds = set()
    for model in library.found():
        if model.remote is not None or model.path.is_dir():
            continue
        try:
            header = preflight.check(model.path)
            if not not_native(header):
                kinds.add(kind_of(header))
        except (HearthError, OSError):
            continue  # The doctor reports it among the models.
    return sorted(kinds - {""})


def measure_kinds(
    kinds: Iterable[str], cache_dir: Path, log_dir: Path, note: Callable[[str], None]
) -> None:
    """Measure both runners, each in its own process, and store the results.

    Args:
        cache_dir: where the results are stored; must exist.
        note: called with what is being measured, and with the kinds that cannot be measured and
            are skipped.

    Raises:
        Stopped: by Ctrl+C.
    """
    speeds = Speeds(cache_dir)
    for kind in kinds:
        by_runner = {}
        try:
            for runner in ("llamacpp", "native"):
                note(f"measuring {kind} with {runner} …")
                question = {"runner": runner, "kind": kind, "cache_dir": str(cache_dir)}
                by_runner[runner] = Speed(**run_job(measure, question, lambda _: None, log_dir))
        except Stopped:
            raise
        except HearthError as error:
            note(f"{kind} cannot be measured: {error.message}")
            continue
        date = time.strftime("%Y-%m-%d")
        speeds.put(Measured(kind, by_runner["llamacpp"], by_runner["native"], date))


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """In the child process: measure the tokens per second of prefill and decode. Raises
    `HearthError` if the runner cannot run that kind.
    """
    from hearth.backends.bench.speed_probe import measure_runner

    reporter.check()
    speed = measure_runner(question["runner"], question["kind"], Path(question["cache_dir"]))
    return asdict(speed)
