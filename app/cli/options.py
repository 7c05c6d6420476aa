"""Options shared by several commands; `settings_keys` declares those of models and sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hearth.app import settings_keys as keys
from hearth.app.settings import Layer, Setting
from hearth.app.settings_keys import Key

Command = TypeVar("Command", bound=Callable[..., Any])

_SHORT = {"context": "--ctx"}
_WITHOUT_FLAG = ("batch_threads", "extra_buffers", "keep_alive_s")
LOADING = (
    *(key for key in keys.LOADING if key.name not in _WITHOUT_FLAG),
    keys.ALL["backend"],
)
_KEYS = (*keys.SAMPLING, *LOADING, keys.ALL["system"])


class KeyType(click.ParamType[Any]):
    """The values that one setting accepts."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.name = key.kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The placeholder shown in the help."""
        if self.key.choices:
            return "|".join(self.key.choices)
        words = {"int": "N", "float": "X", "size": "SIZE", "biases": "ID=X", "bool": "true|false"}
        word = words.get(self.key.kind, "TEXT")
        return f"{keys.AUTO}|{word}" if self.key.auto else word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The checked value."""
        if not isinstance(value, str):
            return value
        try:
            if self.key.kind == "texts":
                self.key.check((value,))
                return value
            return self.key.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def flag_of(key: Key) -> str:
    """The option's name on the command line."""
    return _SHORT.get(key.name, key.flag)


def setting_options(declared: Sequence[Key]) -> Callable[[Command], Command]:
    """Add the options of settings and `--offline` to a command; `typed_settings` reads them."""

    def decorate(command: Command) -> Command:
        for key in reversed(declared):
            if key.kind == "bool":
                names = f"{flag_of(key)}/--no-{flag_of(key)[2:]}"
                command = click.option(names, key.name, default=None, help=_help(key))(command)
                continue
            command = click.option(
                flag_of(key),
                key.name,
                type=KeyType(key),
                multiple=key.kind in ("texts", "biases"),
                help=_help(key),
            )(command)
        return offline_option(command)

    return decorate


def _help(key: Key) -> str:
    text = key.help[0].upper() + key.help[1:] + "."
    default = key.shown(keys.default_of(key))
    # Some help texts state the default themselves; other settings have an empty default.
    nothing: tuple[object, ...] = (keys.AUTO, "", (), {}, None, False)
    return text if default in nothing else f"{text} Default: {default}."


def _go_offline(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.obj.offline = True


offline_option = click.option(
    "--offline",
    is_flag=True,
    expose_value=False,
    callback=_go_offline,
    help="Open no network connection.",
)
"""`--offline`, which is accepted after the command as well as before it."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, with stable keys.")
model_options = setting_options(_KEYS)
"""The options for sampling, loading and the system prompt."""
loading_options = setting_options(LOADING)
"""The options for loading a model, for commands whose requests come from elsewhere."""


def typed_settings(ctx: click.Context) -> Layer:
    """The settings that were typed as `model_options` or `loading_options`."""
    typed: Layer = {}
    for key in _KEYS:
        if ctx.get_parameter_source(key.name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[key.name]
        if key.kind == "texts":
            value = tuple(value)
        elif key.kind == "biases":
            value = {token: bias for biases in value for token, bias in biases.items()}
        typed[key.name] = Setting(value, flag_of(key))
    return typed


def shown_setting(name: str, value: keys.Value) -> str:
    """The value of the setting `name` as shown to the user."""
    value = keys.ALL[name].shown(value) if name in keys.ALL else value
    if isinstance(value, tuple):
        return " ".join(repr(text) for text in value) or "none"
    return str(value or "none") if isinstance(value, dict) else str(value)


def complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names in the library that begin with `incomplete`, and files completed by the shell."""
    from hearth.app.cli.state import State

    names = (model.name for model in State().library.found())
    return beginning_with(incomplete, names) or [CompletionItem(incomplete, type="file")]


def beginning_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    """The items of `names` that begin with `incomplete`, ignoring case."""
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]
