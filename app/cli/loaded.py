"""`hearth ps` and `hearth stop`: the loaded models and their state, and unloading them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from click.shell_completion import CompletionItem

from hearth.app.cli.options import beginning_with, json_option
from hearth.app.cli.state import State
from hearth.app.format import duration, size, state_of, unload_in_s
from hearth.app.nearest import did_you_mean
from hearth.backends.contract.loaded import EngineStats, HostStats, WorkerStats
from hearth.backends.errors import HearthError, ModelNotFound

_NO_HOST = "No host is running, so nothing is loaded."
_UNKNOWN = "-"
_HEADER = (
    *("NAME", "PID", "STATE", "RUNNING", "WAITING", "KV LIVE", "KV KEPT", "KV POOL"),
    *("KV MEMORY", "RESTARTS", "IDLE", "UNLOADS IN"),
)


@click.command("ps")
@json_option
@click.pass_obj
def ps(state: State, as_json: bool) -> None:
    """List the loaded models: who runs, who waits, and what their key-value memory holds. A model
    that is queued is loaded when those that are in use no longer are.

    KV LIVE, KV KEPT and KV POOL are tokens: held by running requests, kept to be found again, and
    at most. KV MEMORY is what is allocated for them now.
    """
    with state.running_host() as link:
        stats = link.stats()
    if as_json:
        state.output.json(as_dict(stats))
        return
    if stats is None:
        state.output.note(_NO_HOST)
        return
    if stats.workers:
        rows = [_HEADER, *(_row(worker) for worker in stats.workers)]
        state.output.table(rows, right=range(1, len(_HEADER)))
    others = stats.clients - 1
    attached = f"{others or 'no'} other{'' if others == 1 else 's'} attached"
    loaded = "" if stats.workers else "; nothing is loaded"
    state.output.note(f"host process {stats.pid}, version {stats.version}, {attached}{loaded}")


def as_dict(stats: HostStats | None) -> dict[str, Any]:
    """The object of `--json`."""
    if stats is None:
        return {"running": False, "workers": []}
    workers = [
        {
            **asdict(worker),
            "state": state_of(worker),
            "unload_in_s": unload_in_s(worker),
            "kv": None if worker.engine is None else _bytes(worker.engine),
        }
        for worker in stats.workers
    ]
    return {"running": True, **asdict(stats), "workers": workers}


def _bytes(engine: EngineStats) -> dict[str, int]:
    token = engine.kv_bytes_per_token
    return {
        "live_bytes": engine.live_tokens * token,
        "kept_bytes": engine.kept_tokens * token,
        "allocated_bytes": engine.allocated_bytes,
        "pool_bytes": engine.pool_bytes,
    }


def _row(worker: WorkerStats) -> tuple[str, ...]:
    left = unload_in_s(worker)
    doing = state_of(worker)
    return (
        worker.name,
        str(worker.pid) if worker.pid else _UNKNOWN,
        doing,
        str(worker.running),
        str(worker.waiting),
        *_memory(worker.engine),
        str(worker.restarts),
        duration(worker.idle_s) if doing == "idle" else _UNKNOWN,
        _UNKNOWN if left is None else duration(left),
    )


def _memory(engine: EngineStats | None) -> tuple[str, str, str, str]:
    if engine is None:
        return (_UNKNOWN,) * 4
    return (
        f"{engine.live_tokens:,}",
        f"{engine.kept_tokens:,}",
        f"{engine.pool_tokens:,}",
        size(engine.allocated_bytes),
    )


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of loaded models that begin with `incomplete`."""
    try:
        with State().running_host() as link:
            stats = link.stats()
    except HearthError:
        return []
    return beginning_with(incomplete, (worker.name for worker in (stats.workers if stats else ())))


@click.command("stop")
@click.argument("model", required=False, default="", shell_complete=_complete)
@click.option("--all", "everything", is_flag=True, help="Unload every model.")
@click.pass_obj
def stop(state: State, model: str, everything: bool) -> None:
    """Unload MODEL, a name that `hearth ps` shows or a path, and end what it is answering."""
    if bool(model) == everything:
        raise click.UsageError("Say which model, or --all; hearth ps lists the loaded ones.")
    with state.running_host() as link:
        stats = link.stats()
        if stats is None:
            state.output.note(_NO_HOST)
            return
        loaded = stats.workers
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
    workers = [
        worker
        for worker in loaded
        if worker.name.lower() == model.lower() or os.path.realpath(worker.path) == path
    ]
    if workers:
        return workers
    names = [worker.name for worker in loaded]
    raise ModelNotFound(
        f'No loaded model is called "{model}".{did_you_mean(model, names)}',
        f"Loaded: {', '.join(names)}." if names else "Nothing is loaded.",
    )
