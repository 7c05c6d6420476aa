"""`hearth list`, `hearth import` and `hearth rm`: lists the models on this machine and the remote
ones of the settings, imports models into the library folder, and deletes them.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.app import format as words
from hearth.app.cli.options import complete_model, json_option
from hearth.app.cli.output import ProgressLine
from hearth.app.cli.state import State
from hearth.app.cli.typed import confirm, somebody_is_there
from hearth.app.library.local import FoundModel, LocalModel

if TYPE_CHECKING:
    from hearth.app.library.adopt import Way
    from hearth.app.library.removal import Removal


@click.command("list")
@json_option
@click.pass_obj
def list_models(state: State, as_json: bool) -> None:
    """List the bundled models, the remote ones, those in the library folder, and those of other
    programs on this machine, which are used in place.
    """
    models = state.library.list()
    if as_json:
        state.output.json(
            {"folder": str(state.library.folder), "models": [_facts(model) for model in models]}
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


def _facts(model: LocalModel) -> dict[str, Any]:
    facts = asdict(model) | {"repo": model.repo or None, "error": model.error or None}
    return facts | {"path": facts.pop("url") or str(model.path)}


@click.command("import")
@click.argument("source", metavar="FILE_OR_FOLDER", type=click.Path(path_type=Path))
@click.option("--copy", "way", flag_value="copy", default="copy", help="Copy it. The default.")
@click.option("--move", "way", flag_value="move", help="Move it: nothing stays where it was.")
@click.option("--link", "way", flag_value="link", help="Leave it where it is, and link to it.")
@click.option("--name", default="", metavar="NAME", help="Call it so; by default as its file.")
@json_option
@click.pass_obj
def import_model(state: State, source: Path, way: Way, name: str, as_json: bool) -> None:
    """Take a GGUF file, or the one model in a folder, into the library; a model in safetensors is
    a folder.

    It is checked first, all parts of a split model are taken, and it is there whole or not at all.
    """
    from hearth.app.library.adopt import adopt, plan_adoption

    adoption = plan_adoption(source, state.library, way, name)
    with ProgressLine(adoption.name) as line:
        path = adopt(adoption, lambda done_bytes: line.show(done_bytes, adoption.size_bytes))
    # A bundled or remote model may already have that name.
    known = state.library.found()
    name = next((model.name for model in known if model.path == path), adoption.name)
    if as_json:
        state.output.json(
            {
                "name": name,
                "path": str(path),
                "files": [str(target) for _, target in adoption.files],
                "size_bytes": adoption.size_bytes,
                "way": adoption.way,
            }
        )
        return
    done = {"copy": "copied", "move": "moved", "link": "linked"}[adoption.way]
    state.output.data(f"{done} {name}, {words.size(adoption.size_bytes)}")
    state.output.note(f"Try it: hearth run {words.argument(name)} PROMPT")


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_model)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def rm(state: State, names: tuple[str, ...], yes: bool, as_json: bool) -> int | None:
    """Delete models of the library folder and of the Hugging Face cache.

    Models of other programs are theirs to delete. A loaded model is unloaded first.
    """
    from hearth.app.library.removal import plan_removal, remove

    models = {model.name.lower(): model for model in state.library.found()}
    planned: dict[Path, tuple[FoundModel, Removal]] = {}
    deleted: set[Path] = set()
    for name in names:  # All are looked up before any is deleted, so a wrong name deletes nothing.
        # The listed name also finds a damaged model, which `resolve` refuses.
        installed = models.get(name.lower()) or state.library.resolve(name)
        if installed.path not in planned:
            removal = plan_removal(installed, state.library, deleted)
            planned[installed.path] = installed, removal
            deleted.update(removal.paths)
    removals = [removal for _, removal in planned.values()]
    freed_bytes = sum(removal.frees_bytes for removal in removals)
    if not yes:
        for removal in removals:
            files = f" in {len(removal.paths)} files" if len(removal.paths) > 1 else ""
            state.output.note(f"{removal.name}: {words.size(removal.frees_bytes)}{files}")
            for detail in (*removal.paths, *removal.keeps):
                state.output.note(f"  {detail}")
        if as_json or not somebody_is_there():
            raise click.UsageError("Deleting asks first; without a terminal it needs --yes.")
        which = "this model" if len(removals) == 1 else f"these {len(removals)} models"
        if not confirm(f"Delete {which}, {words.size(freed_bytes)}?", default=False):
            state.output.note("Nothing was deleted.")
            return 1
    for installed, removal in planned.values():
        _unload(state, installed)
        remove(removal)
        if not as_json:
            state.output.data(f"deleted {removal.name}, {words.size(removal.frees_bytes)} freed")
            for sentence in removal.keeps if yes else ():
                state.output.note(sentence)
    if as_json:
        removed = [
            {
                "name": removal.name,
                "paths": [str(path) for path in removal.paths],
                "freed_bytes": removal.frees_bytes,
                "keeps": list(removal.keeps),
            }
            for removal in removals
        ]
        state.output.json({"removed": removed, "freed_bytes": freed_bytes})
    return None


def _unload(state: State, found: FoundModel) -> None:
    """Unload the model if a host has it loaded: its file is mapped or may be read again."""
    path = os.path.realpath(found.path)
    with state.running_host() as link:
        stats = link.stats()
        for worker in stats.workers if stats is not None else ():
            if os.path.realpath(worker.path) == path:
                link.unload(worker.path)
                ended = f", which ended {worker.running} running" if worker.running else ""
                state.output.note(f"unloaded {worker.name}{ended}")
