"""`hearth list`: the models on this machine, and those of others that the settings name."""

from __future__ import annotations

from typing import Any

import click

from hearth.app.cli import words
from hearth.app.cli.options import json_option
from hearth.app.cli.state import State, pass_state
from hearth.app.library.local import LocalModel


@click.command("list")
@json_option
@pass_state
def list_models(state: State, as_json: bool) -> None:
    """List the bundled models, the remote ones, those in the library folder, and those of other
    programs on this machine, which are used in place.
    """
    models = state.library.list()
    if as_json:
        state.output.json(
            {"folder": str(state.library.folder), "models": [as_dict(m) for m in models]}
        )
        return
    rows: list[tuple[str, ...]] = [
        ("NAME", "SIZE", "FORMAT", "PARAMETERS", "CONTEXT", "ARCHITECTURE", "FROM")
    ]
    rows += [_row(model) for model in models]
    state.output.table(rows, right=(1, 3, 4))
    for model in models:
        if model.error:
            state.output.problem(f"{model.name}: {model.error}")
    if all(model.origin in ("bundled", "remote") for model in models):
        state.output.note(
            f"`hearth pull` shows what can be downloaded. Models in {state.library.folder} are "
            "listed here, too."
        )


def _row(model: LocalModel) -> tuple[str, ...]:
    source = f"{model.origin} {model.repo}".strip()
    if model.origin == "remote":
        return (model.name, "", "remote", "", "", model.url, source)
    size = words.size(model.size_bytes)
    if model.error:
        return (model.name, size, "unusable", "", "", "", source)
    return (
        model.name,
        size,
        model.file_type,
        words.count(model.parameters),
        f"{model.context:,}",
        model.architecture,
        source,
    )


def as_dict(model: LocalModel) -> dict[str, Any]:
    """The object of one model in JSON output."""
    return {
        "name": model.name,
        "path": model.url or str(model.path),
        "origin": model.origin,
        "size_bytes": model.size_bytes,
        "file_type": model.file_type,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "context": model.context,
        "repo": model.repo or None,
        "error": model.error or None,
    }
