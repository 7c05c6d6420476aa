"""`hearth cache`: keys and values on disk."""

from __future__ import annotations

from dataclasses import asdict

import click

from hearth.app.cli.options import json_option
from hearth.app.cli.state import State
from hearth.app.format import size
from hearth.app.kv_files import clear_kv, kv_usage

_HEADER = ("MODEL", "CHATS", "FILES", "SIZE")


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete all of it.")
@json_option
@click.pass_obj
def cache(state: State, clear: bool, as_json: bool) -> None:
    """Show the keys and values that are kept on disk, from which chats go on after a restart.

    A model is listed once for each type of its KV cache. What the server computed counts as one
    chat for each client. --clear deletes no chat: the next question is prefilled.
    """
    if clear:
        freed = clear_kv(state.paths)
        if as_json:
            state.output.json({"freed_bytes": freed})
        else:
            state.output.note(f"{size(freed)} freed.")
        return
    models = kv_usage(state.paths)
    total = sum(model.size_bytes for model in models)
    budget = state.settings.for_model("").load.kv_disk_budget_bytes
    if as_json:
        facts = {"models": [asdict(model) for model in models], "size_bytes": total}
        state.output.json({**facts, "budget_bytes": budget})
        return
    if models:
        rows = [
            (model.name, f"{model.chats:,}", f"{model.files:,}", size(model.size_bytes))
            for model in models
        ]
        state.output.table([_HEADER, *rows], right=range(1, len(_HEADER)))
    state.output.note(f"{size(total)} of {size(budget)} (kv_disk_budget) in {state.paths.kv_cache}")
