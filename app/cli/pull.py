"""`hearth pull`: download a model from the Hugging Face Hub into the shared cache."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from hearth.app.cli import words
from hearth.app.cli.confirm import confirm, somebody_is_there
from hearth.app.cli.options import json_option, offline_option
from hearth.app.cli.progress import ProgressLine
from hearth.app.cli.state import State, pass_state
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Catalogue, Entry, load_catalogue
from hearth.app.paths import own_folder
from hearth.app.shell import argument
from hearth.backends.errors import DoesNotFit, HearthError, ModelNotFound

if TYPE_CHECKING:
    from hearth.app.library.hub import Hub
    from hearth.app.library.hub_files import Choice, Reference
    from hearth.app.library.local import LocalModel
    from hearth.app.library.menu import Menu

Told = Literal["bar", "json", "none"]
_SEARCHED = 5


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the catalogue that begin with `incomplete`."""
    return [
        CompletionItem(entry.name)
        for entry in load_catalogue().entries
        if entry.name.startswith(incomplete.lower())
    ]


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
@pass_state
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
    asks = somebody_is_there(state) and not as_json and not yes
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


def offer_to_pull(state: State, name: str) -> bool:
    """Ask the person at the terminal whether to download what `name` means; True if that is done.

    What goes wrong before the download begins is only noted: the caller has an error of its own.

    Raises:
        HearthError: the download failed.
    """
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
    """What the repository that `name` means offers, and which of it was named; empty if none was.

    Raises:
        ModelNotFound: neither the catalogue nor the Hub has it.
        HearthError: as `Hub.repository` and `hub_files.offer`.
    """
    from hearth.app.library.hub import Hub
    from hearth.app.library.menu import make_menu, room_for

    hub = Hub(offline=state.settings.offline)
    reference, entry = _reference(hub, name, catalogue)
    with state.output.note_if_slow(f"asking {hub.endpoint} …"):
        repository = hub.repository(reference.repo_id, revision or reference.revision)
    room = room_for(hub_cache(), state.paths.cache)
    menu = make_menu(repository, state.settings, room, hub_cache(), entry)
    return menu, reference.choice


def describe_choice(menu: Menu, choice: Choice) -> str:
    """What will be downloaded, in a line."""
    from hearth.app.cli.pull_choices import fit_words, headline

    size = words.size(choice.size_bytes)
    return f"{headline(menu)}\n{choice.name}, {size}: {fit_words(menu.fits[choice.name])}"


def download(state: State, menu: Menu, choice: Choice, told: Told) -> LocalModel:
    """Download `choice`, and say how to use it, or why it cannot be.

    Raises:
        Stopped: by Ctrl+C; what came is kept.
        HearthError: as `Downloader.run`.
    """
    from hearth.app.jobs.child import Stopped
    from hearth.app.jobs.job import run_job
    from hearth.app.library import download_job
    from hearth.app.library.hub import Download, Hub

    found = menu.repository
    wish = Download(found.repo_id, found.revision, found.commit, choice.files)
    hub = Hub(offline=state.settings.offline)
    question = download_job.question(wish, hub_cache(), hub=hub)
    logs = own_folder(state.paths.log)
    with ProgressLine(state, f"{found.repo_id} {choice.name}") as line:
        teller = _Teller(state, line, told)
        try:
            done = run_job(download_job.work, question, teller.tell, logs)
        except Stopped as stopped:
            at = f"--revision={shlex.quote(found.revision)} " if found.revision != "main" else ""
            command = f"hearth pull {at}{argument(f'{found.repo_id}:{choice.name}')}"
            raise Stopped(
                f"Stopped; {words.size(teller.done_bytes)} of {words.size(choice.size_bytes)} "
                "are here and stay.",
                f"The same command goes on from there: {command}",
                done_bytes=teller.done_bytes,
                total_bytes=choice.size_bytes,
            ) from stopped
    return _welcome(state, choice, Path(done["files"][0]), told)


class _Teller:
    """Passes on what the job tells."""

    def __init__(self, state: State, line: ProgressLine, told: Told) -> None:
        from hearth.app.library.downloads import Rate

        self._state = state
        self._line = line
        self._told = told
        self._rate = Rate()
        self.done_bytes = 0

    def tell(self, values: dict[str, Any]) -> None:
        """One update of the job."""
        self.done_bytes, total_bytes = values["done_bytes"], values["total_bytes"]
        self._rate.note(self.done_bytes)
        if self._told == "json":
            rate = self._rate.bytes_per_s
            self._state.output.data(json.dumps({"progress": {**values, "bytes_per_s": rate}}))
        elif self._told == "bar":
            self._line.show(self.done_bytes, total_bytes, after=self._after(values["state"]))

    def _after(self, doing: str) -> str:
        if doing != "downloading":
            return {"waiting": "another download holds it", "checking": "checking"}.get(doing, "")
        rate = self._rate.bytes_per_s
        return f"{words.size(rate)}/s" if rate else ""


def _reference(hub: Hub, name: str, catalogue: Catalogue) -> tuple[Reference, Entry | None]:
    """As `reference_of`; what is not found comes with repositories of that name."""
    from hearth.app.library.errors import RepositoryNotFound
    from hearth.app.library.menu import reference_of

    try:
        return reference_of(name, catalogue)
    except RepositoryNotFound:
        raise
    except ModelNotFound as error:
        raise _not_found(hub, name.partition(":")[0], error) from error


def _not_found(hub: Hub, name: str, error: ModelNotFound) -> ModelNotFound:
    """`error` with repositories of the Hub that go by `name`, where it can be asked."""
    try:
        repos = [found.repo_id for found in hub.search(name, limit=_SEARCHED, tag="gguf")]
    except HearthError:  # The catalogue's own answer stands without it.
        repos = []
    if not repos:
        return error
    return ModelNotFound(
        error.message,
        f"The Hub has {', '.join(repos)}. Download one: hearth pull {argument(repos[0])}",
        **error.data,
        repos=repos,
    )


def _choose(state: State, menu: Menu, wanted: str, *, asks: bool, yes: bool) -> Choice | None:
    """What is downloaded; None if the person would rather not.

    Raises:
        ChoiceNotFound, UsageError: nothing that the repository has was named.
        DoesNotFit: it would not, and there is no terminal to ask.
    """
    from hearth.app.cli.pull_choices import ask_which, choice_needed, show_menu

    if not wanted and not asks and not yes:
        raise choice_needed(menu)
    if wanted or not asks:
        choice = menu.choice(wanted or menu.recommended)
        if asks:
            state.output.note(describe_choice(menu, choice))
    else:
        show_menu(state, menu)
        choice = ask_which(state, menu)
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


def _welcome(state: State, choice: Choice, path: Path, told: Told) -> LocalModel:
    """Say what the new model is called, or why it cannot be used."""
    from hearth.app.library.local import FoundModel, describe
    from hearth.app.library.model_files import identity, stem

    if choice.kind == "safetensors":
        path = path.parent
    new = identity(path)
    here = (model for model in state.library.found() if identity(model.path) == new)
    # Folders of unknown families are not listed; what is wrong with this one is reported below.
    model = describe(next(here, FoundModel(stem(path), path, "huggingface")))
    if model.error:
        state.output.problem(f"{model.name} cannot be run: {model.error}")
    elif told != "json":
        state.output.note(f"{model.name} is here. Try it: hearth run {argument(model.name)} PROMPT")
    return model


def _answer(menu: Menu, choice: Choice, model: LocalModel) -> dict[str, Any]:
    """The object of `hearth pull --json`."""
    from hearth.app.cli.pull_choices import choice_json

    found = menu.repository
    return {
        "name": model.name,
        "path": str(model.path),
        "error": model.error or None,
        "repo": found.repo_id,
        "revision": found.revision,
        "commit": found.commit,
        "licence": found.licence or None,
        "gated": found.gated,
        "choice": choice_json(menu, choice),
        "choices": [choice_json(menu, other) for other in menu.choices],
    }


def _show_catalogue(state: State, catalogue: Catalogue, *, as_json: bool) -> None:
    if as_json:
        state.output.json({"models": [_entry_json(entry) for entry in catalogue.entries]})
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


def _entry_json(entry: Entry) -> dict[str, Any]:
    facts = dataclasses.asdict(entry)
    facts["approximate_sizes"] = facts.pop("sizes")
    return facts
