"""`hearth pull`: download a model from the Hugging Face Hub into the shared cache."""

from __future__ import annotations

import dataclasses
import json
import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from hearth.app import format as words
from hearth.app.cli.options import beginning_with, json_option, offline_option
from hearth.app.cli.output import ProgressLine
from hearth.app.cli.state import State
from hearth.app.cli.typed import ask, confirm, somebody_is_there
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Catalogue, load_catalogue
from hearth.app.library.errors import ChoiceNotFound, RepositoryNotFound
from hearth.app.paths import own_folder
from hearth.backends.errors import DoesNotFit, HearthError, ModelNotFound

if TYPE_CHECKING:
    from hearth.app.library.fit import Fit
    from hearth.app.library.hub import Hub
    from hearth.app.library.hub_files import Choice
    from hearth.app.library.local import LocalModel
    from hearth.app.library.menu import Menu

Told = Literal["bar", "json", "none"]
_SEARCHED = 5
_WAITS = {"waiting": "another download holds it", "checking": "checking"}


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names in the catalogue that begin with `incomplete`."""
    return beginning_with(incomplete, (entry.name for entry in load_catalogue().entries))


@click.command("pull")
@click.argument("name", required=False, default="", shell_complete=_complete)
@click.option("--yes", "-y", is_flag=True, help="Do not ask; without :QUANT, take the recommended.")
@click.option("--revision", default="", metavar="REV", help="A branch, tag or commit.")
@click.option(
    "--progress",
    type=click.Choice(["bar", "json", "none"]),
    default="bar",
    help="How to tell it; json: a line of JSON at a time on stdout. Default: bar, on a terminal.",
)
@json_option
@offline_option
@click.pass_obj
def pull(
    state: State, name: str, yes: bool, revision: str, progress: Told, as_json: bool
) -> int | None:
    """Download NAME: org/name, org/name:QUANT, or a name of the catalogue.

    Without NAME, the catalogue is shown. What was downloaded before is not downloaded again, and
    the same command goes on where a download ended, however it did.
    """
    catalogue = load_catalogue()
    if not name:
        _show_catalogue(state, catalogue, as_json=as_json)
        return None
    asks = somebody_is_there() and not as_json and not yes
    menu, wanted = look_up(state, name, revision, catalogue)
    choice = _choose(state, menu, wanted, asks=asks, yes=yes)
    if choice is None:
        state.output.note("Nothing was downloaded.")
        return 1
    if not asks and not as_json:
        state.output.note(describe_choice(menu, choice))
    model = download(state, menu, choice, progress)
    if as_json:
        state.output.json(_answer(menu, choice, model))
    return None


def offer_to_pull(state: State, name: str, missing: HearthError) -> bool:
    """If a person is at the terminal, offer to download the model that `name` means. Returns
    whether it was downloaded.

    An error before the download begins is only noted: the caller then raises `missing`.

    Raises:
        HearthError: the download failed.
    """
    if not somebody_is_there():
        return False
    state.output.note(missing.message)
    try:
        menu, wanted = look_up(state, name, "", load_catalogue())
        choice = menu.choice(wanted or menu.recommended)
    except HearthError as error:
        state.output.note(error.message)
        return False
    state.output.note(describe_choice(menu, choice))
    likely = menu.fits[choice.name].is_usable
    if not confirm(f"Pull it ({words.size(choice.size_bytes)})?", default=likely):
        return False
    download(state, menu, choice, "bar")
    return True


def look_up(state: State, name: str, revision: str, catalogue: Catalogue) -> tuple[Menu, str]:
    """The menu of the repository that `name` means, and which of its files was named (empty if
    none).

    Raises:
        ModelNotFound: it is neither in the catalogue nor on the Hub.
        HearthError: as `Hub.repository` and `hub_files.offer`.
    """
    from hearth.app.library.hub import Hub
    from hearth.app.library.menu import make_menu, reference_of, room_for

    hub = Hub(offline=state.settings.offline)
    try:
        reference, entry = reference_of(name, catalogue)
    except RepositoryNotFound:
        raise
    except ModelNotFound as error:
        raise _with_repositories(hub, name.partition(":")[0], error) from error
    with state.output.note_if_slow(f"asking {hub.endpoint} …"):
        repository = hub.repository(reference.repo_id, revision or reference.revision)
    room = room_for(hub_cache(), state.paths.cache)
    menu = make_menu(repository, state.settings, room, hub_cache(), entry)
    return menu, reference.choice


def describe_choice(menu: Menu, choice: Choice) -> str:
    """Two lines that describe what will be downloaded, and from where."""
    size = words.size(choice.size_bytes)
    return f"{_headline(menu)}\n{choice.name}, {size}: {_fit_words(menu.fits[choice.name])}"


def download(state: State, menu: Menu, choice: Choice, told: Told) -> LocalModel:
    """Download `choice`, and report how to use it, or why it cannot be used.

    Raises:
        Stopped: by Ctrl+C; the downloaded part is kept.
        HearthError: as `Downloader.run`.
    """
    from hearth.app.jobs.child import Stopped
    from hearth.app.jobs.job import run_job
    from hearth.app.library import download_job
    from hearth.app.library.downloads import Rate
    from hearth.app.library.hub import Hub

    repository = menu.repository
    hub = Hub(offline=state.settings.offline)
    question = download_job.question(menu.download(choice), hub_cache(), hub=hub)
    rate, done_bytes = Rate(), 0
    with ProgressLine(f"{repository.repo_id} {choice.name}") as line:

        def show_progress(values: dict[str, Any]) -> None:
            nonlocal done_bytes
            done_bytes = values["done_bytes"]
            rate.note(done_bytes)
            if told == "json":
                progress = {**values, "bytes_per_s": rate.bytes_per_s}
                state.output.data(json.dumps({"progress": progress}))
            elif told == "bar":
                after = _WAITS.get(values["state"], "")
                if values["state"] == "downloading" and rate.bytes_per_s:
                    after = f"{words.size(rate.bytes_per_s)}/s"
                line.show(done_bytes, values["total_bytes"], after=after)

        try:
            done = run_job(download_job.work, question, show_progress, own_folder(state.paths.log))
        except Stopped as stopped:
            at = (
                f"--revision={shlex.quote(repository.revision)} "
                if repository.revision != "main"
                else ""
            )
            command = f"hearth pull {at}{words.argument(f'{repository.repo_id}:{choice.name}')}"
            raise Stopped(
                f"Stopped; {words.size(done_bytes)} of {words.size(choice.size_bytes)} "
                "are here and stay.",
                f"The same command goes on from there: {command}",
                done_bytes=done_bytes,
                total_bytes=choice.size_bytes,
            ) from stopped
    return _welcome(state, choice, Path(done["files"][0]), told)


def _with_repositories(hub: Hub, name: str, error: ModelNotFound) -> ModelNotFound:
    """`error` with repositories of the Hub that match `name`, if the Hub can be asked."""
    try:
        repos = [model.repo_id for model in hub.search(name, limit=_SEARCHED, tag="gguf")]
    except HearthError:  # The answer of the catalogue is valid without them.
        repos = []
    if not repos:
        return error
    return ModelNotFound(
        error.message,
        f"The Hub has {', '.join(repos)}. Download one: hearth pull {words.argument(repos[0])}",
        **error.data,
        repos=repos,
    )


def _choose(state: State, menu: Menu, wanted: str, *, asks: bool, yes: bool) -> Choice | None:
    """The choice to download; None if the user declines.

    Raises:
        ChoiceNotFound, UsageError: the repository has nothing of the given name.
        DoesNotFit: it does not fit, and there is no terminal to ask at.
    """
    if len(menu.choices) == 1:
        wanted = wanted or menu.recommended
    if not wanted and not asks and not yes:
        sizes = [f"{choice.name} ({words.size(choice.size_bytes)})" for choice in menu.choices]
        repo = menu.repository.repo_id
        raise click.UsageError(
            f"{repo} has {', '.join(sizes)}. Say which, such as {repo}:{menu.recommended}, or take"
            " that one, which is recommended, with --yes."
        )
    if wanted or not asks:
        choice = menu.choice(wanted or menu.recommended)
        if asks:
            state.output.note(describe_choice(menu, choice))
    else:
        _show_menu(state, menu)
        choice = _ask_which(state, menu)
    if menu.fits[choice.name].is_usable or yes:
        return choice
    if asks:
        question = f"{choice.name} does not fit this machine. Download it anyway?"
        return choice if confirm(question, default=False) else None
    raise DoesNotFit(
        f"{choice.name} of {menu.repository.repo_id} does not fit this machine: "
        f"{menu.fits[choice.name].words}.",
        f"{menu.recommended} is recommended; --yes downloads this one all the same.",
        **menu.fits[choice.name].to_json(),
    )


def _fit_words(fit: Fit) -> str:
    """How a choice fits this machine, with the speed that memory allows if that is known."""
    speed = f", up to {fit.speed.tok_per_s:,.0f} tok/s" if fit.speed is not None else ""
    return f"{fit.words}{speed}"


def _headline(menu: Menu) -> str:
    """One line that describes the repository."""
    repository = menu.repository
    parts = [
        repository.repo_id,
        repository.licence or "licence not stated",
        f"{words.count(repository.parameters)} parameters" if repository.parameters else "",
        f"context {repository.context:,}" if repository.context else "",
        "gated" if repository.gated else "",
    ]
    return " · ".join(part for part in parts if part)


def _show_menu(state: State, menu: Menu) -> None:
    """Print the choices on stderr, numbered, grouped as Small, Balanced and Large."""
    state.output.note(_headline(menu))
    names = max(len(choice.name) for choice in menu.choices)
    numbers = enumerate(menu.choices, 1)
    for group, numbered in groupby(numbers, key=lambda pair: pair[1].group):
        state.output.note(group.capitalize())
        for number, choice in numbered:
            mark = "  Recommended" if choice.name == menu.recommended else ""
            state.output.note(
                f"  {number:2}  {choice.name:{names}}  {words.size(choice.size_bytes):>9}  "
                f"{_fit_words(menu.fits[choice.name])}{mark}"
            )
    speeds = [fit.speed for fit in menu.fits.values() if fit.speed is not None]
    if speeds:
        state.output.note(f"Speed: what memory allows, {speeds[0].source}.")
    for refused in menu.offer.refused:
        state.output.note(f"{refused.path} is left out: {refused.reason}.")


def _ask_which(state: State, menu: Menu) -> Choice:
    """Ask for a choice by number or name; Enter takes the recommended one.

    Raises:
        Abort: end of input.
    """
    while True:
        typed = ask(f"Which? [{menu.recommended}]")
        if not typed:
            return menu.choice(menu.recommended)
        if typed.isdecimal() and 1 <= int(typed) <= len(menu.choices):
            return menu.choices[int(typed) - 1]
        try:
            return menu.choice(typed)
        except ChoiceNotFound as error:
            state.output.note(f"{error.message} {error.hint}")


def _choice_json(menu: Menu, choice: Choice) -> dict[str, Any]:
    """The object for one choice in JSON output."""
    return {
        "name": choice.name,
        "kind": choice.kind,
        "size_bytes": choice.size_bytes,
        "files": [file.path for file in choice.files],
        "bits_per_weight": choice.bits_per_weight and round(choice.bits_per_weight, 2),
        "group": choice.group,
        "recommended": choice.name == menu.recommended,
        "fit": menu.fits[choice.name].to_json(),
    }


def _welcome(state: State, choice: Choice, path: Path, told: Told) -> LocalModel:
    """Report the name of the new model, or why it cannot be used."""
    from hearth.app.library.local import FoundModel, describe
    from hearth.app.library.model_files import identity, stem

    if choice.kind == "safetensors":
        path = path.parent
    new = identity(path)
    here = (model for model in state.library.found() if identity(model.path) == new)
    # Folders of unknown families are not listed; the error of this one is reported below.
    model = describe(next(here, FoundModel(stem(path), path, "huggingface")))
    if model.error:
        state.output.problem(f"{model.name} cannot be run: {model.error}")
    elif told != "json":
        state.output.note(
            f"{model.name} is here. Try it: hearth run {words.argument(model.name)} PROMPT"
        )
    return model


def _answer(menu: Menu, choice: Choice, model: LocalModel) -> dict[str, Any]:
    """The object of `hearth pull --json`."""
    repository = menu.repository
    return {
        "name": model.name,
        "path": str(model.path),
        "error": model.error or None,
        "repo": repository.repo_id,
        "revision": repository.revision,
        "commit": repository.commit,
        "licence": repository.licence or None,
        "gated": repository.gated,
        "choice": _choice_json(menu, choice),
        "choices": [_choice_json(menu, other) for other in menu.choices],
    }


def _show_catalogue(state: State, catalogue: Catalogue, *, as_json: bool) -> None:
    if as_json:
        models = [
            {
                "approximate_sizes" if name == "sizes" else name: value
                for name, value in dataclasses.asdict(entry).items()
            }
            for entry in catalogue.entries
        ]
        state.output.json({"models": models})
        return
    rows: list[tuple[str, ...]] = [("NAME", "QUANT", "SIZE", "CONTEXT", "LICENCE", "WHAT FOR")]
    rows += [
        (
            entry.name,
            entry.recommended,
            f"about {words.size(entry.size_bytes)}",
            f"{entry.context:,}" if entry.context else "",
            entry.licence,
            entry.summary,
        )
        for entry in catalogue.entries
    ]
    state.output.table(rows, right=(2, 3))
    state.output.note("Download one: hearth pull NAME. Any repository of the Hub: org/name.")
