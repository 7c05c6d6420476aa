"""`hearth settings`: the values in force and where each comes from."""

from __future__ import annotations

from typing import Any

import click

from hearth.app.cli import words
from hearth.app.cli.options import complete_model, json_option
from hearth.app.cli.state import State, pass_state
from hearth.app.settings import default_document


@click.command("settings")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--default",
    "print_default",
    is_flag=True,
    help="Print a settings file that explains every key.",
)
@json_option
@pass_state
def settings(state: State, model: str, print_default: bool, as_json: bool) -> None:
    """Print the settings in force (for MODEL, if one is named) and where each comes from.

    Flags win over HEARTH_* variables, those over the settings file, that over the defaults. To
    begin a file: hearth settings --default.
    """
    if print_default:
        state.output.data(default_document(), end="")
        return
    found = settings_in_force(state, model)
    if as_json:
        state.output.json({"file": str(state.settings.file), "settings": found})
        return
    rows = [("SETTING", "VALUE", "FROM")]
    rows += [
        (name, words.setting(name, entry["value"]), str(entry["origin"]))
        for name, entry in found.items()
    ]
    state.output.table(rows)
    state.output.note(f"The settings file is {state.settings.file}.")


def settings_in_force(state: State, model: str = "") -> dict[str, dict[str, Any]]:
    """Value and origin of every setting by name. Raises `SettingsError`."""
    name = state.library.resolve(model).name if model else ""
    return {
        key: {"value": setting.value, "origin": setting.origin}
        for key, setting in state.settings.all(name).items()
    }
