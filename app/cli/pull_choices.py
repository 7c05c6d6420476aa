"""What `hearth pull` offers: a repository's files with sizes and fit, and the question which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

import click

from hearth.app.cli import words
from hearth.app.cli.confirm import ask
from hearth.app.cli.state import State
from hearth.app.library.catalogue import Entry
from hearth.app.library.errors import ChoiceNotFound
from hearth.app.library.fit import Fit
from hearth.app.library.hub import Repository
from hearth.app.library.hub_files import Choice, Group, Offer, find_choice, offer


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


def make_menu(repository: Repository, entry: Entry | None) -> Menu:
    """What `repository` offers on this machine.

    Args:
        entry: of the catalogue, if it was named by that: its recommendation counts where it fits.

    Raises:
        RefusedRepository: it offers nothing.
    """
    offered = offer(repository)
    fits = {choice.name: Fit(choice.size_bytes) for choice in offered.choices}
    by_size = {choice.size_bytes: fits[choice.name] for choice in offered.choices}
    offered = offer(repository, lambda size_bytes: by_size[size_bytes].is_usable)
    recommended = offered.recommended.name
    if entry is not None and entry.recommended in fits and fits[entry.recommended].is_usable:
        recommended = entry.recommended
    return Menu(repository, offered, fits, recommended)


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
                f"{menu.fits[choice.name].words}{mark}"
            )
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
