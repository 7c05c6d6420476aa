"""`hearth rm`: delete models, after saying what that frees."""

from __future__ import annotations

import os
from typing import Any

import click

from hearth.app.cli import words
from hearth.app.cli.confirm import confirm, somebody_is_there
from hearth.app.cli.options import complete_model, json_option
from hearth.app.cli.state import State, pass_state
from hearth.app.library.local import FoundModel
from hearth.app.library.removal import Removal, plan_removal, remove


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_model)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@pass_state
def rm(state: State, names: tuple[str, ...], yes: bool, as_json: bool) -> int | None:
    """Delete models of the library folder and of the Hugging Face cache.

    Models of other programs are theirs to delete. A loaded model is unloaded first.
    """
    planned = _plan(state, names)
    if not yes:
        for _, removal in planned:
            _describe(state, removal)
        if as_json or not somebody_is_there(state):
            raise click.UsageError("Deleting asks first; without a terminal it needs --yes.")
        freed = words.size(sum(removal.frees_bytes for _, removal in planned))
        if not confirm(f"Delete {_counted(len(planned))}, {freed}?", default=False):
            state.output.note("Nothing was deleted.")
            return 1
    for found, removal in planned:
        _unload(state, found)
        remove(removal)
        if not as_json:
            state.output.data(f"deleted {removal.name}, {words.size(removal.frees_bytes)} freed")
            if yes:
                for sentence in removal.keeps:
                    state.output.note(sentence)
    if as_json:
        removals = [removal for _, removal in planned]
        state.output.json(
            {
                "removed": [_as_dict(removal) for removal in removals],
                "freed_bytes": sum(removal.frees_bytes for removal in removals),
            }
        )
    return None


def _plan(state: State, names: tuple[str, ...]) -> list[tuple[FoundModel, Removal]]:
    """All of it before the first deletion, so that a wrong name deletes nothing."""
    planned: dict[str, tuple[FoundModel, Removal]] = {}
    models = {model.name.lower(): model for model in state.library.found()}
    for name in names:
        # By its listed name a damaged model is found as well, which `resolve` refuses.
        found = models.get(name.lower()) or state.library.resolve(name)
        planned[str(found.path)] = found, plan_removal(found, state.library)
    return list(planned.values())


def _describe(state: State, removal: Removal) -> None:
    count = len(removal.paths)
    files = f" in {count} files" if count > 1 else ""
    state.output.note(f"{removal.name}: {words.size(removal.frees_bytes)}{files}")
    for path in removal.paths:
        state.output.note(f"  {path}")
    for sentence in removal.keeps:
        state.output.note(f"  {sentence}")


def _unload(state: State, found: FoundModel) -> None:
    """Unload the model if a host has it loaded: its file is mapped or about to be read again."""
    path = os.path.realpath(found.path)
    with state.running_host() as link:
        for worker in link.stats().workers if link is not None else ():
            if os.path.realpath(worker.path) == path and link is not None:
                link.unload(worker.path)
                ended = f", which ended {worker.running} running" if worker.running else ""
                state.output.note(f"unloaded {worker.name}{ended}")


def _counted(count: int) -> str:
    return "this model" if count == 1 else f"these {count} models"


def _as_dict(removal: Removal) -> dict[str, Any]:
    return {
        "name": removal.name,
        "paths": [str(path) for path in removal.paths],
        "freed_bytes": removal.frees_bytes,
        "keeps": list(removal.keeps),
    }
