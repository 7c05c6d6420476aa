"""`hearth fit`: whether a model fits this machine, downloaded or not, and how fast it can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hearth.app import format as words
from hearth.app import settings_keys as keys
from hearth.app.cli.options import complete_model, json_option, setting_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode

if TYPE_CHECKING:
    from hearth.app.library.catalogue import Entry
    from hearth.app.library.fit import Fit, Room
    from hearth.app.settings import Layer

_PARTS = {
    "weights": "weights",
    "repacked": "weights in another order",
    "kv": "keys and values",
    "states": "recurrent states",
    "compute": "scratch memory",
    "outputs": "logits",
    "vocabulary": "vocabulary",
    "base": "interpreter and libraries",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One model, or one quant of a repository."""

    name: str
    size_bytes: int
    fit: Fit


@click.command("fit")
@click.argument("model", shell_complete=complete_model)
@setting_options((keys.ALL["context"], keys.ALL["kv_type"], keys.ALL["kv_type_v"]))
@json_option
@click.pass_context
def fit(ctx: click.Context, /, model: str, as_json: bool, **_options: Any) -> int:
    """Say whether MODEL fits this machine: a model that is here, a name of the catalogue, or
    org/name or org/name:QUANT on the Hub.

    Without --ctx it is asked for 8,192 tokens. What is not downloaded yet is estimated from its
    size. The exit code is 4 if nothing of it fits.
    """
    state: State = ctx.obj
    verdicts = _verdicts(state, model, typed_settings(ctx))
    if as_json:
        found = [
            {"name": one.name, "size_bytes": one.size_bytes, **one.fit.to_json()}
            for one in verdicts
        ]
        state.output.json({"model": model, "fits": found})
    elif len(verdicts) == 1:
        _print_one(state, verdicts[0])
    else:
        _print_all(state, verdicts)
    is_usable = any(verdict.fit.is_usable for verdict in verdicts)
    return ExitCode.OK if is_usable else ExitCode.DOES_NOT_FIT


def _verdicts(state: State, model: str, flags: Layer) -> Sequence[Verdict]:
    """Of a model that is here one; else one of each quant that `model` can mean.

    Raises:
        ModelNotFound: neither this machine nor the catalogue nor the Hub has it.
        HearthError: as `Hub.repository` and `hub_files.offer`.
    """
    from hearth.app.library.catalogue import load_catalogue
    from hearth.backends.errors import ModelNotFound

    try:
        return [_local(state, model, flags)]
    except ModelNotFound:
        entry = load_catalogue().get(model.partition(":")[0])
        if entry is None and not _is_repository(model):
            raise
    return list(_remote(state, model, entry, flags))


def _is_repository(model: str) -> bool:
    """`model` can name a repository, and is no path."""
    return "/" in model and not model.startswith(("/", ".", "~")) and not model.endswith(".gguf")


def _local(state: State, model: str, flags: Layer) -> Verdict:
    from hearth.app.library.fit import fit_of_folder, fit_of_header
    from hearth.backends.native.model_folder import read_model_folder
    from hearth.quant.gguf import preflight

    chosen = state.choose(model, flags)
    if chosen.found.remote is not None:
        url = chosen.found.remote.url
        raise click.UsageError(f"{chosen.found.name} runs at {url} and takes no memory here.")
    path, room = chosen.found.path, _room(state, downloads=False)
    if path.is_dir():
        folder = read_model_folder(path)
        found = fit_of_folder(folder, chosen.spec.settings, room)
        return Verdict(chosen.found.name, folder.size_bytes, found)
    header = preflight.check(path)
    size = sum(part.size_bytes for part in (header, *header.shards))
    return Verdict(chosen.found.name, size, fit_of_header(header, chosen.spec.settings, room))


def _remote(state: State, model: str, entry: Entry | None, flags: Layer) -> Iterator[Verdict]:
    from hearth.app.library.fit import facts_of, fit_of_download
    from hearth.app.library.hub import Hub
    from hearth.app.library.hub_files import find_choice, offer, parse_reference

    base, colon, quant = model.partition(":")
    reference = parse_reference(model if entry is None else f"{entry.repo}{colon}{quant}")
    settings = state.settings.with_flags(flags).for_model(base).load
    room = _room(state, downloads=True)
    if entry is not None and state.settings.offline:
        for name, size in entry.sizes.items():
            if not quant or name.lower() == quant.lower():
                facts = facts_of(size, entry)
                yield Verdict(f"{entry.name}:{name}", size, fit_of_download(facts, settings, room))
        return
    hub = Hub(offline=state.settings.offline)
    with state.output.note_if_slow(f"asking {hub.endpoint} …"):
        repository = hub.repository(reference.repo_id, reference.revision)
    offered = offer(repository)
    choices = offered.choices
    if reference.choice:
        choices = (find_choice(offered, reference.repo_id, reference.choice),)
    for choice in choices:
        facts = facts_of(choice.size_bytes, entry, repository)
        found = fit_of_download(facts, settings, room)
        yield Verdict(f"{reference.repo_id}:{choice.name}", choice.size_bytes, found)


def _room(state: State, *, downloads: bool) -> Room:
    """What there is; memory is timed now if it never was."""
    from hearth.app.library.bandwidth import known_bandwidth, measure_bandwidth
    from hearth.app.library.cache_layout import hub_cache
    from hearth.app.library.fit import room_here
    from hearth.app.machine import this_machine
    from hearth.app.paths import own_folder

    machine = this_machine()
    bandwidth = known_bandwidth(state.paths.cache, machine)
    if bandwidth is None:
        with state.output.note_if_slow("measuring how fast memory is read …"):
            bandwidth = measure_bandwidth(
                own_folder(state.paths.cache), machine, own_folder(state.paths.log)
            )
    return room_here(hub_cache() if downloads else None, bandwidth, machine)


def _print_one(state: State, verdict: Verdict) -> None:
    found = verdict.fit
    out = state.output
    out.data(f"{verdict.name}, {words.size(verdict.size_bytes)}: {found.words}")
    out.data(found.reason)
    rows: list[tuple[str, str]] = [("MEMORY", "")]
    rows += [
        (title, words.size(size))
        for part, title in _PARTS.items()
        if (size := getattr(found.use, part))
    ]
    if found.use.total > found.use.held:
        rows.append(("more while the pool grows", words.size(found.use.total - found.use.held)))
    rows.append(("in all, at most", words.size(found.use.total)))
    if found.use.turning:
        more = found.use.most - found.use.total
        rows.append(("if attention changes, and that is free, more", words.size(max(0, more))))
    if found.use.uncertain:
        rows.append(("give or take", words.size(found.use.uncertain)))
    out.table(rows, right=(1,))
    out.data(
        f"Context: for {found.context:,} tokens ({found.kv_type}); there is room for "
        f"{found.largest_context:,}."
    )
    if found.download_bytes and found.room.disk_free_bytes is not None:
        free = words.size(found.room.disk_free_bytes)
        out.data(f"Disk: {words.size(found.download_bytes)} of {free} free.")
    if found.speed is not None:
        out.data(f"Speed: {_speed(found)} tokens a second ({found.speed.source}).")
    out.data("Memory of a GPU: not known before a model is loaded; all is counted as memory.")


def _print_all(state: State, verdicts: Sequence[Verdict]) -> None:
    rows: list[tuple[str, ...]] = [("NAME", "SIZE", "NEEDS", "CONTEXT", "TOK/S", "FIT")]
    for verdict in verdicts:
        found = verdict.fit
        about = "~" if found.use.uncertain else ""
        rows.append(
            (
                verdict.name,
                words.size(verdict.size_bytes),
                f"{about}{words.size(found.use.needed)}",
                f"{found.largest_context:,}",
                _speed(found),
                found.state if found.fits_on_disk is not False else "disk too small",
            )
        )
    state.output.table(rows, right=(1, 2, 3, 4))
    first = verdicts[0].fit
    state.output.note(
        f"For {first.context:,} tokens in {first.kv_type}, with {words.size(first.room.free_bytes)}"
        " of memory free. ~ is estimated from the size of the file. CONTEXT: for which there is "
        "room."
    )
    if first.speed is not None:
        state.output.note(f"TOK/S: what reading the weights allows, by {first.speed.source}.")


def _speed(found: Fit) -> str:
    """From the end of a context to its beginning, what reading memory allows."""
    if found.speed is None:
        return ""
    most, least = found.speed.tok_per_s, found.speed.full_tok_per_s
    digits = 1 if most < 10 else 0
    limit = "at most " if found.speed.is_limit else ""
    return f"{limit}{least:,.{digits}f} to {most:,.{digits}f}"
