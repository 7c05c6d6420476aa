"""`hearth stop`: unload models."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from hearth.app.cli.state import State, pass_state
from hearth.app.nearest import did_you_mean
from hearth.backends.contract import WorkerStats
from hearth.backends.errors import HearthError, ModelNotFound


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of loaded models that begin with `incomplete`."""
    try:
        with State().running_host() as link:
            workers = link.stats().workers if link else ()
    except HearthError:
        return []
    return [
        CompletionItem(worker.name)
        for worker in workers
        if worker.name.lower().startswith(incomplete.lower())
    ]


@click.command("stop")
@click.argument("model", required=False, default="", shell_complete=_complete)
@click.option("--all", "everything", is_flag=True, help="Unload every model.")
@pass_state
def stop(state: State, model: str, everything: bool) -> None:
    """Unload MODEL, a name that `hearth ps` shows or a path, and end what it is answering."""
    if bool(model) == everything:
        raise click.UsageError("Say which model, or --all; hearth ps lists the loaded ones.")
    with state.running_host() as link:
        if link is None:
            state.output.note("No host is running, so nothing is loaded.")
            return
        loaded = link.stats().workers
        for worker in loaded if everything else _called(model, loaded):
            if link.unload(worker.path):
                state.output.data(f"unloaded {worker.name}")
            if worker.running:
                ended = f"{worker.running} running request{'' if worker.running == 1 else 's'}"
                state.output.note(f"That ended {ended}.")
        if everything and not loaded:
            state.output.note("Nothing is loaded.")


def _called(model: str, loaded: Sequence[WorkerStats]) -> list[WorkerStats]:
    path = os.path.realpath(os.path.expanduser(model))
    found = [
        worker
        for worker in loaded
        if worker.name.lower() == model.lower() or os.path.realpath(worker.path) == path
    ]
    if found:
        return found
    names = [worker.name for worker in loaded]
    raise ModelNotFound(
        f'No loaded model is called "{model}".{did_you_mean(model, names)}',
        f"Loaded: {', '.join(names)}." if names else "Nothing is loaded.",
    )
