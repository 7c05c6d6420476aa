"""What `hearth pull` offers: a repository's files with sizes and fit, and the question which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, get_args

import click

from hearth.app.cli import words
from hearth.app.cli.confirm import ask
from hearth.app.cli.state import State
from hearth.app.library.bandwidth import known_bandwidth
from hearth.app.library.cache_layout import RepositoryCache, hub_cache
from hearth.app.library.catalogue import Entry
from hearth.app.library.errors import ChoiceNotFound
from hearth.app.library.fit import Fit, Room, fit_of_download, room_here
from hearth.app.library.guess import FileFacts
from hearth.app.library.hub import Repository
from hearth.app.library.hub_files import Choice, Group, Offer, find_choice, offer
from hearth.app.machine import this_machine
from hearth.backends.contract import ModelSettings


@dataclass(frozen=True, slots=True)
class Menu:
    """What can be pulled from one repository.

    Attributes:
        fits: how each choice suits this machine, by name.
        recommended: the name of the one to take if nobody says otherwise.
    """

    repository: Repository
    offer: Offer
    fits: Mapping[str, Fit]
    recommended: str

    @property
    def choices(self) -> Sequence[Choice]:
        """By group, the smallest first."""
        groups = get_args(Group)
        return sorted(self.offer.choices, key=lambda choice: groups.index(choice.group))

    def choice(self, wanted: str) -> Choice:
        """The choice called `wanted`. Raises `ChoiceNotFound`."""
        return find_choice(self.offer, self.repository.repo_id, wanted)


def make_menu(state: State, repository: Repository, entry: Entry | None) -> Menu:
    """What `repository` offers on this machine, as the settings would load it.

    Args:
        entry: of the catalogue, if it was named by that: its recommendation counts where it fits.

    Raises:
        RefusedRepository: it offers nothing.
        SettingsError, InvalidParameter: the settings cannot be used.
    """
    machine = this_machine()
    room = room_here(hub_cache(), known_bandwidth(state.paths.cache, machine), machine)
    load = replace(state.settings.for_model(repository.repo_id).load, kv_budget_bytes=None)
    offered = offer(repository)
    fits = {choice.name: _fit(repository, choice, entry, load, room) for choice in offered.choices}
    by_size = {choice.size_bytes: fits[choice.name] for choice in offered.choices}
    offered = offer(repository, lambda size_bytes: by_size[size_bytes].is_usable)
    recommended = offered.recommended.name
    if entry is not None and entry.recommended in fits and fits[entry.recommended].is_usable:
        recommended = entry.recommended
    return Menu(repository, offered, fits, recommended)


def _fit(
    repository: Repository, choice: Choice, entry: Entry | None, load: ModelSettings, room: Room
) -> Fit:
    """How `choice` suits this machine; only what is not here yet needs room on the disk."""
    facts = FileFacts(choice.size_bytes, repository.parameters, context=repository.context)
    if entry is not None:
        facts = replace(
            facts,
            parameters=facts.parameters or entry.parameters,
            active_parameters=entry.active_parameters,
            context=facts.context or entry.context or None,
        )
        if entry.shape is not None:
            facts = replace(
                facts,
                layers=entry.shape.layers,
                kv_heads=entry.shape.kv_heads,
                head_size=entry.shape.head_size,
            )
    cache = RepositoryCache(hub_cache(), repository.repo_id)
    lacking = [file for file in choice.files if not cache.blob(file.etag).exists()]
    fit = fit_of_download(facts, load, room)
    return replace(fit, download_bytes=sum(file.size_bytes for file in lacking))


def fit_words(fit: Fit) -> str:
    """How a choice suits this machine, with the speed that memory allows where that is known."""
    speed = f", up to {fit.speed.tok_per_s:,.0f} tok/s" if fit.speed is not None else ""
    return f"{fit.words}{speed}"


def headline(menu: Menu) -> str:
    """What the repository is, in a line."""
    found = menu.repository
    parts = [
        found.repo_id,
        found.licence or "licence not stated",
        f"{words.count(found.parameters)} parameters" if found.parameters else "",
        f"context {found.context:,}" if found.context else "",
        "gated" if found.gated else "",
    ]
    return " · ".join(part for part in parts if part)


def show_menu(state: State, menu: Menu) -> None:
    """The choices on stderr, numbered, under Small, Balanced and Large."""
    state.output.note(headline(menu))
    names = max(len(choice.name) for choice in menu.choices)
    numbers = enumerate(menu.choices, 1)
    for group, numbered in groupby(numbers, key=lambda pair: pair[1].group):
        state.output.note(group.capitalize())
        for number, choice in numbered:
            mark = "  Recommended" if choice.name == menu.recommended else ""
            state.output.note(
                f"  {number:2}  {choice.name:{names}}  {words.size(choice.size_bytes):>9}  "
                f"{fit_words(menu.fits[choice.name])}{mark}"
            )
    speeds = [fit.speed for fit in menu.fits.values() if fit.speed is not None]
    if speeds:
        state.output.note(f"Speed: what memory allows, {speeds[0].source}.")
    for refused in menu.offer.refused:
        state.output.note(f"{refused.path} is left out: {refused.reason}.")


def ask_which(state: State, menu: Menu) -> Choice:
    """The choice that a person types, by number or name; Enter takes the recommended one.

    Raises:
        Abort: the end of input.
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


def choice_needed(menu: Menu) -> click.UsageError:
    """The error where nobody can be asked which."""
    names = ", ".join(f"{choice.name} ({words.size(choice.size_bytes)})" for choice in menu.choices)
    repo = menu.repository.repo_id
    return click.UsageError(
        f"{repo} has {names}. Say which, such as {repo}:{menu.recommended}, or take that one, "
        "which is recommended, with --yes."
    )


def choice_json(menu: Menu, choice: Choice) -> dict[str, Any]:
    """The object of one choice in JSON output."""
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
