"""The slash commands of chats: those of the app, the parser (also used by the line-by-line chat),
and the settings that `/set` changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hearth.app.nearest import did_you_mean, nearest
from hearth.app.settings_keys import LOADING, SAMPLING
from hearth.backends.errors import InvalidParameter

_WRITTEN: Final = re.compile(r"/([A-Za-z?][\w-]*|\?)(?:\s+(.*))?", re.DOTALL)
_ASKED: Final = re.compile(r"\?(?:\s*(\w.*))?", re.DOTALL)


class UnknownCommand(InvalidParameter):
    """No slash command has this name."""

    code = "unknown_command"


class ArgumentMissing(InvalidParameter):
    """A slash command lacks its argument, or got one that it does not take."""

    code = "argument_missing"


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed slash command.

    Attributes:
        name: of the slash command.
        argument: as it was written, without surrounding space.
    """

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One slash command.

    Attributes:
        argument: placeholder in the help; in brackets if it is optional.
        words: the allowed arguments, if only some words are allowed.
        ends_with_off: the argument "off" removes the constraint on answers.
        aliases: further names.
    """

    name: str
    argument: str
    help: str
    words: tuple[str, ...] = ()
    ends_with_off: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def needs_argument(self) -> bool:
        """Whether it does nothing without its argument."""
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def usage(self) -> str:
        """How the command is written."""
        return f"/{self.name} {self.argument}".rstrip()

    def command(self, argument: str = "") -> Command:
        """The command with `argument`. Raises `ArgumentMissing` if it does not take that."""
        if not argument and self.needs_argument:
            raise ArgumentMissing(
                self.name, f"/{self.name} needs an argument.", f"Write {self.usage}."
            )
        if argument and not self.argument:
            raise ArgumentMissing(
                self.name,
                f"/{self.name} takes no argument.",
                f"Write {self.usage}, or a space before the / to send it to the model.",
            )
        if argument and self.words and argument not in self.words:
            raise ArgumentMissing(
                self.name,
                f"/{self.name} cannot be {argument[:40]!r}.",
                f"Write {self.usage}.",
            )
        if self.ends_with_off and argument == "off":
            return Command("json", "off")
        return Command(self.name, argument)


CHAT_SETTINGS: Final = {key.name: key for key in SAMPLING if key.name != "logprobs"}
"""The settings that /set changes, by name."""
_SWITCH: Final = ("on", "off")
COMMANDS: Final = {
    command.name: command
    for command in (
        SlashCommand("help", "", "show the keys and commands", aliases=("h", "?")),
        SlashCommand("guide", "[QUESTION]", "ask guide about Hearth; ? QUESTION does it too"),
        SlashCommand("new", "", "start a new chat", aliases=("clear",)),
        SlashCommand("model", "[NAME]", "change the model of this chat"),
        SlashCommand("system", "[TEXT]", "set or edit the system prompt"),
        SlashCommand(
            "think",
            "on|off|auto",
            "let the model think before it answers, or not; auto: its own habit",
            (*_SWITCH, "auto"),
        ),
        SlashCommand("set", "NAME VALUE", "change a setting of this chat"),
        SlashCommand("settings", "", "show and change all settings of this chat"),
        SlashCommand("preset", "[NAME]", "use a preset"),
        SlashCommand("save-preset", "[NAME]", "keep model, prompt and settings as a preset"),
        SlashCommand("json", "[on|off]", "answers are JSON, or free again", _SWITCH),
        SlashCommand("schema", "FILE|off", "answers follow a JSON schema", ends_with_off=True),
        SlashCommand("regex", "PATTERN|off", "answers match a pattern", ends_with_off=True),
        SlashCommand("choice", "A | B ...|off", "answers are one of these", ends_with_off=True),
        SlashCommand("retry", "", "let the model answer again", aliases=("regenerate",)),
        SlashCommand("continue", "", "let the model go on with its last answer"),
        SlashCommand("edit", "", "change your last message"),
        SlashCommand("copy", "", "copy the last answer"),
        SlashCommand("stop", "", "end the answer and keep its text"),
        SlashCommand("search", "[TEXT]", "search all chats"),
        SlashCommand("compare", "[MODEL]", "ask this model and another one side by side"),
        SlashCommand("prompt", "", "show exactly what the model gets"),
        SlashCommand("rename", "[TITLE]", "give this chat a title"),
        SlashCommand("pin", "", "keep this chat at the top of the list, or not"),
        SlashCommand("archive", "", "archive this chat, or restore it"),
        SlashCommand("clone", "", "copy this chat"),
        SlashCommand("delete", "", "delete this chat for good"),
        SlashCommand("export", "[markdown|json] [PATH]", "write this chat to a file"),
        SlashCommand("import", "PATH", "read a chat that was exported as JSON"),
        SlashCommand("stats", "", "show or hide the numbers below answers"),
        SlashCommand("library", "", "find, download and delete models"),
        SlashCommand("quantize", "", "make a model smaller"),
        SlashCommand("engine", "", "show what runs"),
        SlashCommand("endpoint", "", "show the endpoint for other programs"),
        SlashCommand("doctor", "", "check this machine"),
        SlashCommand("suspend", "", "suspend the app; fg in the shell continues it"),
        SlashCommand("quit", "", "leave", aliases=("exit", "bye", "q")),
    )
}
"""The commands by name, in the order of the help."""


def is_command(text: str) -> bool:
    """Whether `text` is a slash command, or ? with an optional question. A path is not, nor is a
    text that begins with a space.
    """
    return any(form.fullmatch(text.rstrip()) for form in (_WRITTEN, _ASKED))


def parse(text: str, commands: Mapping[str, SlashCommand] = COMMANDS) -> Command:
    """The command that `text` means, such as "/model guide" or "? how do I quantize".

    Raises:
        UnknownCommand: there is no such command; the message names the nearest.
        ArgumentMissing: its argument is missing or not allowed.
    """
    if asked := _ASKED.fullmatch(text.rstrip()):
        return Command("guide", asked[1] or "")
    written = _WRITTEN.fullmatch(text.rstrip())
    name = written[1].lower() if written is not None else text.strip()[:40].removeprefix("/")
    command = find(name, commands)
    if written is None or command is None:
        near = nearest(name, commands)
        guess = f"Did you mean /{near[0]}? " if near else ""
        raise UnknownCommand("command", f"There is no command /{name}.", f"{guess}/help lists all.")
    return command.command((written[2] or "").strip())


def find(name: str, commands: Mapping[str, SlashCommand] = COMMANDS) -> SlashCommand | None:
    """The command with this name or alias."""
    return next((one for one in commands.values() if name in (one.name, *one.aliases)), None)


def changed_setting(argument: str) -> tuple[str, Any]:
    """The name and the value, in the form that chats store, of the setting that `/set ARGUMENT`
    changes.

    Raises:
        InvalidParameter: there is no such setting, or the value is not allowed.
    """
    name, _, text = argument.partition(" ")
    name = name.replace("-", "_").lstrip("_")
    key = CHAT_SETTINGS.get(name)
    if key is None and name in {other.name for other in LOADING}:
        why = "by a flag of `hearth chat`, or in the settings"
        raise InvalidParameter("set", f"{name} is set when a model is loaded: {why}.")
    if key is None:
        raise InvalidParameter(
            "set",
            f'A chat has no setting "{name}".{did_you_mean(name, CHAT_SETTINGS)}',
            "ctrl+g shows all of them; line by line, /set does.",
        )
    try:
        value = key.parse(text.strip())
    except ValueError as error:
        raise InvalidParameter(name, f"{name}: {error}.", "Give another value.") from error
    return name, key.stored(value)


def beginning(written: str) -> Iterator[SlashCommand]:
    """The commands whose names begin with `written`, given without the slash."""
    wanted = written.lower()
    return (command for command in COMMANDS.values() if command.name.startswith(wanted))
