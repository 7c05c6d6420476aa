"""What `hearth pull` offers: a repository's files with sizes and fit, and the question which."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click

from hearth.app.cli import words
from hearth.app.cli.confirm import ask
from hearth.app.cli.state import State
from hearth.app.library.errors import ChoiceNotFound
from hearth.app.library.fit import Fit
from hearth.app.library.hub_files import Choice
from hearth.app.library.menu import Menu


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
    """The error where there is no terminal to ask which."""
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
