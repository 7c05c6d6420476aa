"""Settings: flags win over `HEARTH_*` variables, those over `settings.toml`, that over defaults.

The file has top-level keys, `[load]` and `[sampling]` for all models, and `[models."name"]` with a
`sampling` table of its own for one; `[remotes."name"]` is a model of another machine, `[aliases]`
gives models further names, `[keys]` gives bindings of the terminal app other keys.
`settings_keys` and `remotes` declare every key; `origin` says where a value comes from.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from hearth.app import settings_keys as keys
from hearth.app.nearest import did_you_mean, nearest
from hearth.app.remotes import REMOTE_KEYS, UNSET_SAMPLING, refuse_loading, remote_server
from hearth.app.settings_keys import Key, Value
from hearth.backends.errors import SettingsError
from hearth.backends.models import BackendName, HostLimits, ModelSettings
from hearth.backends.remote.server import RemoteServer
from hearth.backends.sampling import SamplingParams

# Read elsewhere: paths, error reports, the endpoint, and the Makefile's tools.
_OWN_VARIABLES = ("HEARTH_HOME", "HEARTH_DEBUG", "HEARTH_API_KEY", "HEARTH_TORCH_INDEX")


_TABLES = ("load", "sampling", "models", "remotes", "aliases", "keys")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it comes from: "default", the file, a variable or a flag, by name."""

    value: Value
    origin: str = "default"


Layer = dict[str, Setting]


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The settings that hold for one model, flags included."""

    backend: BackendName
    system: str
    load: ModelSettings
    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Settings:
    """What file, environment and flags say.

    Attributes:
        file: where the settings file is or would be.
        base: from the file's top level, `[load]` and `[sampling]`.
        models: from `[models."name"]`, by lower-case name.
        environment: from `HEARTH_*`.
        flags: what was typed.
        strangers: `HEARTH_*` variables that are not settings.
        remotes: from `[remotes."name"]`, by lower-case name.
        aliases: from `[aliases]`: names of models by aliases in lower case, which may be patterns.
        keymap: from `[keys]`: keys of the terminal app, such as "f1,ctrl+h", by binding id.
    """

    file: Path
    base: Layer = field(default_factory=dict)
    models: dict[str, Layer] = field(default_factory=dict)
    environment: Layer = field(default_factory=dict)
    flags: Layer = field(default_factory=dict)
    strangers: tuple[str, ...] = ()
    remotes: dict[str, RemoteServer] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    keymap: dict[str, str] = field(default_factory=dict)

    def with_flags(self, flags: Layer) -> Settings:
        """These settings with more flags typed."""
        return replace(self, flags={**self.flags, **flags})

    def all(self, model: str = "") -> Layer:
        """Every setting by name, as it holds for `model` (for none in particular if empty)."""
        defaults = {key.name: Setting(keys.default_of(key)) for key in keys.ALL.values()}
        if model.lower() in self.remotes:
            defaults |= {name: Setting(value) for name, value in UNSET_SAMPLING.items()}
        else:
            own_defaults = keys.MODEL_DEFAULTS.get(model.lower(), {})
            defaults |= {name: Setting(value) for name, value in own_defaults.items()}
        own = self.models.get(model.lower(), {})
        return {**defaults, **self.base, **own, **self.environment, **self.flags}

    def text(self, name: str) -> str:
        """The text of a top-level key."""
        return str(self.all()[name].value)

    @property
    def offline(self) -> bool:
        """No network connection may be opened."""
        return self.all()["offline"].value is True

    @property
    def host_idle_s(self) -> float:
        """Seconds the host process stays when no front end is attached and it is idle."""
        return cast(float, self.all()["host_idle_s"].value)

    @property
    def host_limits(self) -> HostLimits:
        """How much the host process may have loaded at the same time."""
        found = self.all()
        return HostLimits(
            models_memory_bytes=cast("int | None", found["models_memory"].value),
            max_models=cast("int | None", found["max_models"].value),
        )

    def for_model(self, name: str) -> ModelUse:
        """What holds for the model called `name`. Raises `SettingsError` for its template file."""
        found = self.all(name)
        load: dict[str, Any] = {key.target: found[key.name].value for key in keys.LOADING}
        if "chat_template" in found and found["chat_template"].value:
            load["chat_template"] = self._template(found["chat_template"])
        sampled = {item.name for item in fields(SamplingParams)}
        return ModelUse(
            backend=cast(BackendName, found["backend"].value),
            system=str(found["system"].value),
            load=ModelSettings(**load),
            sampling=SamplingParams(**cast(Any, {n: found[n].value for n in sampled})),
            max_tokens=cast("int | None", found["max_tokens"].value),
            stop=cast("tuple[str, ...]", found["stop"].value),
            origins={name: setting.origin for name, setting in found.items()},
        )

    def _template(self, setting: Setting) -> str:
        path = self.file.parent / Path(str(setting.value)).expanduser()
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{setting.origin}: the chat template {path} cannot be read ({error}).",
                "Correct chat_template, or remove it to use the model's own template.",
            ) from error


def layer_of(values: Mapping[str, Any], origin: str) -> Layer:
    """`values` by names of settings. Raises `SettingsError` for unknown names and wrong values."""
    layer: Layer = {}
    for name, value in values.items():
        if name not in keys.ALL:
            raise SettingsError(
                f'{origin}: unknown setting "{name}".{did_you_mean(name, keys.ALL)}',
                "`hearth settings --default` lists every key.",
            )
        try:
            layer[name] = Setting(keys.ALL[name].check(value), origin)
        except ValueError as error:
            raise SettingsError(f"{origin}: {name}: {error}.") from None
    return layer


def load_settings(file: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read `file` (if there is one) and the environment.

    Raises:
        SettingsError: unknown key, wrong type or value out of range, by file or variable, key and
            what is expected.
    """
    environment, strangers = _read_environment(os.environ if environ is None else environ)
    found = parse_settings(file, read_text(file))
    return replace(found, environment=environment, strangers=strangers)


def read_text(file: Path) -> str:
    """What the settings file holds; empty where there is none. Raises `SettingsError`."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, error) from error


def parse_settings(file: Path, text: str) -> Settings:
    """The settings that a `file` which holds `text` makes. Raises `SettingsError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unusable(file, error) from error
    source = _Source(file)
    models = source.table(data.pop("models", {}), "models")
    remotes = source.table(data.pop("remotes", {}), "remotes")
    aliases = source.table(data.pop("aliases", {}), "aliases")
    keymap = source.keymap(source.table(data.pop("keys", {}), "keys"))
    base = {
        **source.layer(source.table(data.pop("load", {}), "load"), "load", keys.LOADING),
        **source.layer(
            source.table(data.pop("sampling", {}), "sampling"), "sampling", keys.SAMPLING
        ),
        **source.layer(data, "", keys.GENERAL, _TABLES),
    }
    for name in models:
        if any(name.lower() == remote.lower() for remote in remotes):
            own = source.table(models[name], f'models."{name}"')
            refuse_loading(name, own, f'{file}, [models."{name}"]')
    return Settings(
        file,
        base,
        {name.lower(): source.model(name, table) for name, table in models.items()},
        remotes={name.lower(): source.remote(name, table) for name, table in remotes.items()},
        aliases={name.lower(): source.alias(name, value) for name, value in aliases.items()},
        keymap=keymap,
    )


def _unusable(file: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"{file}: {error}",
        "Correct the file; `hearth settings --default` prints one to start from.",
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """A settings file being read; knows how to name a place in it."""

    file: Path

    def table(self, value: object, name: str) -> dict[str, object]:
        if not isinstance(value, dict):
            raise SettingsError(f"{self.file}: {name} must be a table, [{name}].")
        return value

    def model(self, name: str, value: object) -> Layer:
        where = f'models."{name}"'
        table = dict(self.table(value, where))
        sampling = self.table(table.pop("sampling", {}), f"{where}.sampling")
        own = (*keys.LOADING, *keys.MODEL_ONLY)
        return {
            **self.layer(table, where, own, ("sampling",)),
            **self.layer(sampling, f"{where}.sampling", keys.SAMPLING),
        }

    def remote(self, name: str, value: object) -> RemoteServer:
        where = f'remotes."{name}"'
        layer = self.layer(self.table(value, where), where, REMOTE_KEYS)
        given = {key: setting.value for key, setting in layer.items()}
        return remote_server(name, given, f"{self.file}, [{where}]", self.file.parent)

    def keymap(self, table: dict[str, object], begin: str = "") -> dict[str, str]:
        """Keys by binding id, whose dots TOML takes for tables where no quotes are around it."""
        found: dict[str, str] = {}
        for name, value in table.items():
            ident = f"{begin}{name}"
            if isinstance(value, dict):
                found |= self.keymap(value, f"{ident}.")
            elif isinstance(value, str) and value.strip():
                found[ident] = value
            else:
                raise SettingsError(
                    f'{self.file}, [keys]: {ident} must be keys as a text, such as "f1,ctrl+h".'
                )
        return found

    def alias(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise SettingsError(
                f"{self.file}, [aliases]: {name} must be the name of a model, as a text."
            )
        return value

    def layer(
        self,
        table: dict[str, object],
        where: str,
        allowed: Iterable[Key],
        tables: tuple[str, ...] = (),
    ) -> Layer:
        known = {key.name: key for key in allowed}
        place = f"{self.file}, [{where}]" if where else str(self.file)
        found: Layer = {}
        for name, value in table.items():
            if name not in known:
                raise SettingsError(
                    f'{place}: unknown key "{name}".{did_you_mean(name, (*known, *tables))}',
                    "`hearth settings --default` lists every key.",
                )
            try:
                found[name] = Setting(known[name].check(value), place)
            except ValueError as error:
                raise SettingsError(f"{place}: {name}: {error}.") from None
        return found


def _read_environment(environ: Mapping[str, str]) -> tuple[Layer, tuple[str, ...]]:
    known = {key.variable: key for key in keys.ALL.values()}
    found: Layer = {}
    strangers = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith("HEARTH_") or variable in _OWN_VARIABLES:
            continue
        key = known.get(variable)
        if key is None:
            if nearest(variable.removeprefix("HEARTH_"), keys.ALL):
                raise SettingsError(f"Unknown variable {variable}.{did_you_mean(variable, known)}")
            strangers.append(variable)
            continue
        try:
            found[key.name] = Setting(key.parse(text), variable)
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}.") from None
    if "offline" not in found and environ.get("HF_HUB_OFFLINE", "").strip().lower() in (
        "1",
        "true",
        "yes",
        "on",
    ):
        found["offline"] = Setting(True, "HF_HUB_OFFLINE")
    return found, tuple(strangers)


Section = Literal["", "load", "sampling"]


def default_document() -> str:
    """A settings file that says what every key does and changes nothing."""
    lines = [
        "# Hearth's settings. Every line below shows a default; remove the # to change one.",
        "# Flags win over HEARTH_* variables (HEARTH_TEMPERATURE=0.2), those over this file.",
    ]
    sections: tuple[tuple[Section, tuple[Key, ...]], ...] = (
        ("", keys.GENERAL),
        ("load", keys.LOADING),
        ("sampling", keys.SAMPLING),
    )
    for section, declared in sections:
        lines += ["", f"[{section}]"] if section else [""]
        lines += [
            f"# {key.name} = {_toml(key.shown(keys.default_of(key)))}  # {key.help}"
            for key in declared
        ]
    lines += [
        "",
        "# For one model; any key of [load], and those of [sampling] in a table of their own:",
    ]
    lines += ['# [models."guide"]', "# context = 1024"]
    lines += [f'# {key.name} = ""  # {key.help}' for key in keys.MODEL_ONLY]
    lines += ['# [models."guide".sampling]', "# temperature = 0.2"]
    lines += ["", "# A model that another machine serves (docs/scale.md):", '# [remotes."cluster"]']
    lines += [
        f"# {key.name} = {_toml(key.shown(key.default))}  # {key.help}" for key in REMOTE_KEYS
    ]
    lines += ["", "# Further names for models, for programs that ask for one of their own:"]
    lines += ["# [aliases]", '# gpt-4o-mini = "guide"', '# "claude-*" = "guide"', ""]
    lines += ["# Other keys in the terminal app; F1 shows the ids:"]
    lines += ["# [keys]", '# "app.help" = "f1,ctrl+h"', ""]
    return "\n".join(lines)


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{token} = {bias}" for token, bias in value.items()) + " }"
    return str(value)


def _toml_text(text: str) -> str:
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    )
    return f'"{escaped}"'
