"""`hearth show --verify`: every weight of a model looked at, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hearth.app import format as words
from hearth.app.cli.state import State

_SHOWN: Final = 5
"""Tensors named in a line; all of them are in the JSON."""


def look_at_weights(state: State, path: Path, name: str) -> dict[str, Any]:
    """What the job found (`verify_job`), and under "sound" whether all is right.

    Raises:
        Stopped: by Ctrl+C.
        CorruptFile, UnsupportedModel: the model breaks its format, or no runner can run it.
    """
    from hearth.app.cli.output import ProgressLine
    from hearth.app.jobs.job import run_job
    from hearth.app.library.verify_job import verify
    from hearth.app.paths import own_folder

    with ProgressLine(f"checking {name}") as line:
        found = run_job(
            verify,
            {"path": str(path)},
            lambda values: line.show(values["done"], values["total"]),
            own_folder(state.paths.log),
        )
    return {"sound": not found["not_finite"], **found}


def verdict_lines(found: dict[str, Any]) -> list[str]:
    """What was found, for people."""
    checked = found["tensors"] - len(found["unread"])
    took = f"{words.size(found['size_bytes'])} in {words.duration(found['wall_s'])}"
    if found["not_finite"]:
        names = [
            f"{one['name']} ({one['rows']} rows, the first is {one['first_row']})"
            for one in found["not_finite"]
        ]
        lines = [f"NaN or infinite numbers in {_listed(names)}: get the file again"]
    else:
        lines = [f"all numbers of {checked} tensors are finite ({took})"]
    if not found["family"]:
        lines.append("the native runner does not know this kind of model; llama.cpp may")
    if found["unread"]:
        lines.append(f"not looked into, because of their type: {_listed(found['unread'])}")
    if found["unknown"]:
        lines.append(f"unknown tensors, which are not used: {_listed(found['unknown'])}")
    if found["skipped"]:
        lines.append(f"not needed: {_listed(found['skipped'])}")
    return lines


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
