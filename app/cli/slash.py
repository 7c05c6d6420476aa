"""The slash commands of the line-mode chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth.app import settings_keys as keys
from hearth.app.cli import words
from hearth.app.nearest import did_you_mean, nearest
from hearth.app.settings import Setting
from hearth.backends.errors import InvalidParameter

if TYPE_CHECKING:
    from hearth.app.cli.repl import Repl


class Leave(Exception):
    """The user leaves the chat."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command: its argument in help, what it does, and how."""

    argument: str
    help: str
    run: Callable[[Repl, str], None]


def run_command(repl: Repl, name: str, argument: str) -> None:
    """Do `/name argument`. Raises Leave, or HearthError with what is wrong."""
    command = _COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        near = nearest(name, _COMMANDS)
        guess = f"Did you mean /{near[0]}? " if near else ""
        raise InvalidParameter(
            "command", f"There is no command /{name}.", f"{guess}/help lists them."
        )
    command.run(repl, argument)


def _help(repl: Repl, argument: str) -> None:
    for name, command in _COMMANDS.items():
        repl.output.note(f"  {f'/{name} {command.argument}'.rstrip():18} {command.help}")
    repl.output.note("  Ctrl+C stops an answer and keeps its text. Ctrl+D leaves.")
    repl.output.note(
        '  A trailing backslash, or """ before and after, makes a message of several lines.'
    )


def _new(repl: Repl, argument: str) -> None:
    repl.conversation.clear()
    repl.output.note("A new chat.")


def _system(repl: Repl, argument: str) -> None:
    if argument:
        repl.conversation.system = argument
        repl.output.note(
            "The system prompt holds from the next answer on. /new forgets the turns before."
        )
    else:
        repl.output.note(
            repl.conversation.system or "There is no system prompt. /system TEXT sets one."
        )


def _model(repl: Repl, argument: str) -> None:
    if argument:
        repl.change_model(argument)
    else:
        names = [model.name for model in repl.state.library.found()]
        repl.output.note(f"{repl.info.name} answers. Here are: {', '.join(names)}.")


def _stats(repl: Repl, argument: str) -> None:
    repl.stats = not repl.stats
    repl.output.note("Numbers follow each answer." if repl.stats else "No numbers any more.")


def _set(repl: Repl, argument: str) -> None:
    name, _, text = argument.partition(" ")
    known = {key.name: key for key in keys.SAMPLING if key.name != "logprobs"}
    if not name:
        values = repl.state.settings.with_flags(repl.flags).all(repl.chosen.found.name)
        for key in known.values():
            shown = words.setting(key.name, values[key.name].value)
            repl.output.note(f"  {key.name:22} {shown:10} {key.help}")
        return
    name = name.replace("-", "_").lstrip("_")
    if name not in known:
        raise InvalidParameter("key", _why_not(name, known), "/set lists the keys.")
    try:
        value = known[name].parse(text.strip())
    except ValueError as error:
        raise InvalidParameter(name, f"{name}: {error}.") from None
    repl.flags[name] = Setting(value, "/set")
    repl.settle()
    repl.output.note(f"{name} is {words.setting(name, value)} from the next answer on.")


def _why_not(name: str, known: dict[str, keys.Key]) -> str:
    if name in {key.name for key in keys.LOADING}:
        return (
            f"{name} is set when a model is loaded: by a flag of `hearth chat`, or in the settings."
        )
    return f'There is no key "{name}".{did_you_mean(name, known)}'


def _quit(repl: Repl, argument: str) -> None:
    raise Leave


_COMMANDS = {
    "help": SlashCommand("", "show this", _help),
    "new": SlashCommand("", "start a new chat", _new),
    "system": SlashCommand("[TEXT]", "show or set the system prompt", _system),
    "model": SlashCommand("[NAME]", "show or change the model", _model),
    "set": SlashCommand("[KEY VALUE]", "show or set how tokens are drawn", _set),
    "stats": SlashCommand("", "switch numbers after each answer on or off", _stats),
    "quit": SlashCommand("", "leave", _quit),
}
_ALIASES = {"exit": "quit", "bye": "quit", "q": "quit", "h": "help", "?": "help", "clear": "new"}
