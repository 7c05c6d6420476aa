"""Settings. Precedence: flags, then `HEARTH_*` variables, then `settings.toml`, then defaults.

The file has top-level keys and the tables `[load]` and `[sampling]` for all models, and
`[models."name"]` with its own `sampling` table for one model. `[remotes."name"]` is a model of
another machine, `[aliases]` gives models further names, and `[keys]` changes key bindings of the
terminal app. `settings_keys` declares every key; `origin` tells where a value comes from.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from hearth.app import settings_keys as keys
from hearth.app.library.local import BUNDLED, MODEL_SUFFIXES
from hearth.app.nearest import did_you_mean, nearest
from hearth.app.overflow import Overflow
from hearth.app.settings_keys import Key, Value
from hearth.backends.contract.models import BackendName, HostLimits, ModelSettings
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import SettingsError
from hearth.backends.remote.server import Kind, RemoteServer

# Read elsewhere: by paths, error reports, the endpoint, and the tools of the Makefile.
_OWN_VARIABLES = (
    *("HEARTH_HOME", "HEARTH_DEBUG", "HEARTH_API_KEY", "HEARTH_TORCH_INDEX"),
    *("HEARTH_CPU_KERNELS", "HEARTH_CUDA_KERNELS", "HEARTH_CUDA_GRAPHS", "HEARTH_METAL_KERNELS"),
)
_TABLES = ("load", "sampling", "models", "remotes", "aliases", "keys")
_REMOTE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it comes from: "default", "model default", or the name of the file, the
    variable or the flag.
    """

    value: Value
    origin: str = "default"


Layer = dict[str, Setting]


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The settings that apply to one model, including flags."""

    backend: BackendName
    system: str
    load: ModelSettings
    sampling: SamplingParams
    max_tokens: int | None
    attention_sinks: int | None
    stop: tuple[str, ...]
    context_overflow: Overflow | None
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of file, environment and flags.

    Attributes:
        file: where the settings file is or would be.
        base: from the file's top level, `[load]` and `[sampling]`.
        models: from `[models."name"]`, by lower-case name.
        environment: from `HEARTH_*`.
        flags: from the command line.
        unknown_variables: `HEARTH_*` variables that are not settings.
        remotes: from `[remotes."name"]`, by lower-case name.
        aliases: from `[aliases]`: names of models by lower-case alias, which may be a pattern.
        keymap: from `[keys]`: keys of the terminal app, such as "f1,ctrl+h", by binding id.
    """

    file: Path
    base: Layer = field(default_factory=dict)
    models: dict[str, Layer] = field(default_factory=dict)
    environment: Layer = field(default_factory=dict)
    flags: Layer = field(default_factory=dict)
    unknown_variables: tuple[str, ...] = ()
    remotes: dict[str, RemoteServer] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    keymap: dict[str, str] = field(default_factory=dict)

    def with_flags(self, flags: Layer) -> Settings:
        """These settings with additional flags."""
        return replace(self, flags={**self.flags, **flags})

    def all(self, model: str = "") -> Layer:
        """Every setting by name, with its value for `model` (empty: for no particular model)."""
        name = model.lower()
        own = keys.MODEL_DEFAULTS.get(name, {})
        if name in self.remotes:
            own = keys.UNSET_SAMPLING
        defaults = {key.name: keys.default_of(key) for key in keys.ALL.values()}
        return {
            **{name: Setting(value) for name, value in defaults.items()},
            **{name: Setting(value, "model default") for name, value in own.items()},
            **self.base,
            **self.models.get(name, {}),
            **self.environment,
            **self.flags,
        }

    def text(self, name: str) -> str:
        """The value of a top-level key of type text."""
        return str(self.all()[name].value)

    @property
    def offline(self) -> bool:
        """Whether network connections are forbidden."""
        return self.all()["offline"].value is True

    @property
    def host_idle_s(self) -> float:
        """Seconds that the host process stays when it is idle and no front end is attached."""
        return cast(float, self.all()["host_idle_s"].value)

    @property
    def host_limits(self) -> HostLimits:
        """Limits on what the host process may have loaded at the same time."""
        in_force = self.all()
        return HostLimits(
            models_memory_bytes=cast("int | None", in_force["models_memory"].value),
            max_models=cast("int | None", in_force["max_models"].value),
        )

    @property
    def host_options(self) -> tuple[float, HostLimits, dict[str, RemoteServer]]:
        """Arguments of `HostConnection` and `HostLink` after the place of the host."""
        return self.host_idle_s, self.host_limits, self.remotes

    def for_model(self, name: str) -> ModelUse:
        """The settings of the model called `name`. Raises `SettingsError` for its template file."""
        in_force = self.all(name)
        load: dict[str, Any] = {key.target: in_force[key.name].value for key in keys.LOADING}
        if "chat_template" in in_force and in_force["chat_template"].value:
            load["chat_template"] = self._template(in_force["chat_template"])
        sampled = {item.name for item in fields(SamplingParams)}
        return ModelUse(
            backend=cast(BackendName, in_force["backend"].value),
            system=str(in_force["system"].value),
            load=ModelSettings(**load),
            sampling=SamplingParams(**cast(Any, {n: in_force[n].value for n in sampled})),
            max_tokens=cast("int | None", in_force["max_tokens"].value),
            attention_sinks=cast("int | None", in_force["attention_sinks"].value),
            stop=cast("tuple[str, ...]", in_force["stop"].value),
            context_overflow=cast("Overflow | None", in_force["context_overflow"].value),
            origins={name: setting.origin for name, setting in in_force.items()},
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


def layer_of(
    values: Mapping[str, object],
    place: str,
    declared: Iterable[Key] = tuple(keys.ALL.values()),
    tables: tuple[str, ...] = (),
) -> Layer:
    """`values` as a layer of settings, by name.

    Args:
        place: where the values come from, for messages.
        declared: the allowed keys.
        tables: other allowed names, for suggestions.

    Raises:
        SettingsError: unknown name, or invalid value.
    """
    known = {key.name: key for key in declared}
    layer: Layer = {}
    for name, value in values.items():
        if name not in known:
            raise SettingsError(
                f'{place}: unknown key "{name}".{did_you_mean(str(name), (*known, *tables))}',
                "`hearth settings --default` lists every key.",
            )
        try:
            layer[name] = Setting(known[name].check(value), place)
        except ValueError as error:
            raise SettingsError(f"{place}: {name}: {error}.") from None
    return layer


def load_settings(file: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read `file` (if it exists) and the environment.

    Raises:
        SettingsError: unknown key, wrong type or value out of range. The message names the file or
            variable, the key and what is expected.
    """
    environment, unknown_variables = _read_environment(os.environ if environ is None else environ)
    settings = parse_settings(file, read_text(file))
    return replace(settings, environment=environment, unknown_variables=unknown_variables)


def read_text(file: Path) -> str:
    """The content of the settings file; empty if it does not exist. Raises `SettingsError`."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, error) from error


def parse_settings(file: Path, text: str) -> Settings:
    """The settings of a `file` with the content `text`. Raises `SettingsError`."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Long numbers and deep nesting included.
        raise _unusable(file, error) from error
    tables = {name: _table(file, name, data.get(name, {})) for name in _TABLES}
    for section in ("models", "remotes", "aliases"):
        _require_distinct(file, section, tables[section])
    general = {name: value for name, value in data.items() if name not in tables}
    for name, value in tables["aliases"].items():
        if not isinstance(value, str) or not value:
            raise SettingsError(
                f"{file}, [aliases]: {name} must be the name of a model, as a text."
            )
    remotes = {
        name.lower(): _remote(file, name, table) for name, table in tables["remotes"].items()
    }
    return Settings(
        file,
        base={
            **layer_of(tables["load"], f"{file}, [load]", keys.LOADING),
            **layer_of(tables["sampling"], f"{file}, [sampling]", keys.SAMPLING),
            **layer_of(general, str(file), keys.GENERAL, _TABLES),
        },
        models={
            name.lower(): _model(file, name, table, is_remote=name.lower() in remotes)
            for name, table in tables["models"].items()
        },
        remotes=remotes,
        aliases={name.lower(): value for name, value in tables["aliases"].items()},
        keymap=_keymap(file, tables["keys"]),
    )


def _unusable(file: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"{file}: {error}",
        "Correct the file; `hearth settings --default` prints one to start from.",
    )


def _table(file: Path, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{file}: {name} must be a table, [{name}].")
    return value


def _require_distinct(file: Path, section: str, names: Iterable[str]) -> None:
    """Raise `SettingsError` if two of `names` differ only in case: they mean the same model."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise SettingsError(
                f'{file}, [{section}]: "{other}" and "{name}" are the same name: capitals make no '
                "difference.",
                "Merge the two, or remove one.",
            )


def _model(file: Path, name: str, value: object, *, is_remote: bool) -> Layer:
    """The settings of `[models."name"]`; loading settings are refused for a remote model."""
    where = f'models."{name}"'
    table = dict(_table(file, where, value))
    sampling = _table(file, f"{where}.sampling", table.pop("sampling", {}))
    loading = {key.name for key in keys.LOADING} | {"chat_template"}
    if is_remote and (refused := sorted(loading & table.keys())):
        raise SettingsError(
            f"{file}, [{where}]: {refused[0]}: {name} is a remote model, which its own server"
            " loads.",
            "Leave it out, or tell that server.",
        )
    own = (*keys.LOADING, *keys.MODEL_ONLY)
    return {
        **layer_of(table, f"{file}, [{where}]", own, ("sampling",)),
        **layer_of(sampling, f"{file}, [{where}.sampling]", keys.SAMPLING),
    }


def _remote(file: Path, name: str, table: object) -> RemoteServer:
    """The server of `[remotes."name"]`. Raises `SettingsError`, also if the name or the URL cannot
    be used, or if two keys are given.
    """
    where = f'remotes."{name}"'
    place = f"{file}, [{where}]"
    layer = layer_of(_table(file, where, table), place, keys.REMOTE)
    if not _REMOTE_NAME.fullmatch(name) or name.lower().endswith(MODEL_SUFFIXES):
        raise SettingsError(
            f"{place}: {name!r} cannot be the name of a model.",
            "Use letters, digits and . _ : @ / + -, and begin with a letter or digit.",
        )
    if name.lower() in BUNDLED:
        raise SettingsError(f"{place}: {name} comes with Hearth.", "Choose another name.")
    values: dict[str, Any] = {key.name: key.default for key in keys.REMOTE}
    values |= {key: setting.value for key, setting in layer.items()}
    key_file = values["key_file"]
    if values["key_env"] and key_file:
        raise SettingsError(f"{place}: there are key_env and key_file.", "Leave one of them.")
    return RemoteServer(
        name,
        _url(values["url"], place),
        model=values["model"],
        server=cast("Kind | None", values["server"]),
        key_env=values["key_env"],
        key_file=file.parent / Path(key_file).expanduser() if key_file else None,
        timeout_s=values["timeout_s"],
    )


def _url(text: str, place: str) -> str:
    """The base URL of an API without a trailing slash; /v1 is added to a URL without a path."""
    try:
        parts = urlsplit(text)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            f"{place}: url: expected an address such as http://10.0.0.5:8000/v1.",
            "Write http:// or https://, the host, and /v1 for most servers.",
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"{place}: url: it has a name or password in it.",
            "Put the key into a variable, and name that as key_env.",
        )
    if parts.query or parts.fragment:
        raise SettingsError(f"{place}: url: it has a ? or # in it.", "End it at the path.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _keymap(file: Path, table: Mapping[str, object], begin: str = "") -> dict[str, str]:
    """Keys by binding id. An unquoted id with dots is read by TOML as nested tables."""
    keymap: dict[str, str] = {}
    for name, value in table.items():
        ident = f"{begin}{name}"
        if isinstance(value, dict):
            keymap |= _keymap(file, value, f"{ident}.")
        elif isinstance(value, str) and value.strip():
            keymap[ident] = value
        else:
            raise SettingsError(
                f'{file}, [keys]: {ident} must be keys as a text, such as "f1,ctrl+h".'
            )
    return keymap


def _read_environment(environ: Mapping[str, str]) -> tuple[Layer, tuple[str, ...]]:
    known = {key.variable: key for key in keys.ALL.values()}
    layer: Layer = {}
    unknown_variables = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith("HEARTH_") or variable in _OWN_VARIABLES:
            continue
        if variable in known:
            try:
                layer[known[variable].name] = Setting(known[variable].parse(text), variable)
            except ValueError as error:
                raise SettingsError(f"{variable}: {error}.") from None
        elif nearest(variable.removeprefix("HEARTH_"), keys.ALL):
            raise SettingsError(f"Unknown variable {variable}.{did_you_mean(variable, known)}")
        else:
            unknown_variables.append(variable)
    if "offline" not in layer and environ.get("HF_HUB_OFFLINE", "").strip().lower() in (
        "1",
        "true",
        "yes",
        "on",
    ):
        layer["offline"] = Setting(True, "HF_HUB_OFFLINE")
    return layer, tuple(unknown_variables)


def default_document() -> str:
    """A settings file that documents every key and changes nothing."""
    lines = [
        "# Hearth's settings. Every line below shows a default; remove the # to change one.",
        "# Flags win over HEARTH_* variables (HEARTH_TEMPERATURE=0.2), those over this file.",
    ]
    for section, declared in keys.SECTIONS.items():
        lines += ["", f"[{section}]"] if section else [""]
        lines += [_line(key, keys.default_of(key)) for key in declared]
    lines += [
        "",
        "# For one model; any key of [load], and those of [sampling] in a table of their own:",
    ]
    lines += ['# [models."guide"]', "# context = 1024"]
    lines += [f'# {key.name} = ""  # {key.help}' for key in keys.MODEL_ONLY]
    lines += ['# [models."guide".sampling]', "# temperature = 0.2"]
    lines += ["", "# A model that another machine serves (docs/scale.md):", '# [remotes."cluster"]']
    lines += [_line(key, key.default) for key in keys.REMOTE]
    lines += ["", "# Further names for models, for programs that ask for one of their own:"]
    lines += ["# [aliases]", '# gpt-4o-mini = "guide"', '# "claude-*" = "guide"', ""]
    lines += ["# Other keys in the terminal app; F1 shows the ids:"]
    lines += ["# [keys]", '# "app.help" = "f1,ctrl+h"', ""]
    return "\n".join(lines)


def _line(key: Key, default: Value) -> str:
    """The commented line of one key; TOML writes strings, numbers, booleans and arrays as JSON."""
    return f"# {key.name} = {json.dumps(key.shown(default), ensure_ascii=False)}  # {key.help}"
