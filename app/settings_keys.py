"""Every setting, declared once for the file, `HEARTH_*` variables, flags and `/set`."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from hearth.app.format import format_size, parse_size
from hearth.app.overflow import Overflow
from hearth.app.paths import find_paths
from hearth.backends.contract.fields import REQUEST_FIELDS, Field
from hearth.backends.contract.models import BackendName, Dtype, KvPool, KvType, ModelSettings
from hearth.backends.contract.rope import RopeScalingName
from hearth.backends.contract.sampling import (
    SAMPLING_FIELDS,
    SamplingParams,
    Speculate,
    SpeculateRule,
)
from hearth.backends.remote import server as remote_server

Value = bool | int | float | str | tuple[str, ...] | dict[int, float] | None
Kind = Literal["bool", "int", "float", "size", "text", "texts", "paths", "biases"]

AUTO = "auto"
_INT32_MAX = 2**31 - 1
_BOOLS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        name: as written in the file and after `/set`; `HEARTH_` + upper case in the environment.
        kind: type of its value; "size" is a number of bytes, written with or without a unit,
            "texts" a list of texts, "paths" a list of folders, "biases" a table from token id to
            number.
        help: what it does, in one line without a full stop.
        low, high: inclusive range of a number.
        above: exclusive lower bound of a number, in place of `low`.
        choices: allowed texts.
        auto: "auto" is allowed too, and stands for None: decided by Hearth.
        default: the value when it is not set.
        field: the contract's field that it sets, if the name differs: field names include units,
            which settings have in their values instead.
    """

    name: str
    kind: Kind
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    auto: bool = False
    default: Value = None
    field: str = ""

    @property
    def flag(self) -> str:
        """The long option of the same name."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable of the same name."""
        return "HEARTH_" + self.name.upper()

    @property
    def target(self) -> str:
        """The contract's field that it sets."""
        return self.field or self.name

    def shown(self, value: Value) -> Value:
        """`value` in the form that is written by users and read by `parse` and `check`."""
        if value is None and self.auto:
            return AUTO
        return format_size(value) if self.kind == "size" and isinstance(value, int) else value

    def stored(self, value: Value) -> Any:
        """`value` in the form of JSON and TOML, which `check` reads."""
        shown = self.shown(value)
        if isinstance(shown, tuple):
            return list(shown)
        if isinstance(shown, dict):
            return {str(token): bias for token, bias in shown.items()}
        return shown

    def expects(self) -> str:
        """The allowed values in words, for messages and help."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif self.kind in ("int", "float"):
            text = ("a whole number" if self.kind == "int" else "a number") + self._range()
        else:
            text = _KIND_WORDS[self.kind]
        return f"{text}, or {AUTO}" if self.auto else text

    def _range(self) -> str:
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.low is not None:
            low = f"from {_number(self.low)}"
        if self.high is None or self.high == _INT32_MAX:  # No limit in practice.
            return f" {low}" if low else ""
        return f" {low} to {_number(self.high)}" if low else f" up to {_number(self.high)}"

    def check(self, value: object) -> Value:
        """`value`, as read from TOML, converted to the type of this key. Raises ValueError."""
        if self.auto and value == AUTO:
            return None
        checked = _CHECKS[self.kind](value)
        if checked is None or (self.choices and checked not in self.choices):
            raise self._unexpected(value)
        if isinstance(checked, int | float) and not (
            (isinstance(checked, int) or math.isfinite(checked))
            and (self.low is None or checked >= self.low)
            and (self.high is None or checked <= self.high)
            and (self.above is None or checked > self.above)
        ):
            raise self._unexpected(value)
        return checked

    def _unexpected(self, value: object) -> ValueError:
        try:
            text = repr(value) if isinstance(value, str) else str(value)
        except ValueError:  # Python writes no whole number of more digits, but reads hexadecimals.
            text = f"a number of over {sys.get_int_max_str_digits():,} digits"
        except RecursionError:
            text = "a list that is nested too deeply"
        shown = text if len(text) <= 60 else text[:57] + "..."
        return ValueError(f"expected {self.expects()}, not {shown}")

    def parse(self, text: str) -> Value:
        """The value that is written as `text`. Raises ValueError as `check` does."""
        if self.auto and text.strip().lower() == AUTO:
            return None
        try:
            value = _PARSERS.get(self.kind, str)(text)
        except ValueError:
            raise self._unexpected(text) from None
        return self.check(value)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _check_bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _check_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_float(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # A whole number beyond the range of float.
        return None


def _check_size(value: object) -> int | None:
    return parse_size(value) if isinstance(value, str) else _check_int(value)


def _check_text(value: object) -> str | None:
    return value if isinstance(value, str) and _is_utf8(value) else None


def _check_texts(value: object) -> tuple[str, ...] | None:
    if isinstance(value, list | tuple) and all(_check_text(item) is not None for item in value):
        return tuple(value)
    return None


def _check_paths(value: object) -> tuple[str, ...] | None:
    """Relative paths are refused: they would depend on where a command is run."""
    paths = _check_texts(value)
    if paths is None or not all(path[:1] == "~" or Path(path).is_absolute() for path in paths):
        return None
    return paths


def _is_utf8(text: str) -> bool:
    """False for lone surrogates, which undecodable bytes of arguments and variables become."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _check_biases(value: object) -> dict[int, float] | None:
    if not isinstance(value, dict):
        return None
    biases: dict[int, float] = {}
    for token, bias in value.items():
        number = _check_float(bias)
        if number is None or not -100 <= number <= 100 or not _TOKEN.fullmatch(str(token)):
            return None
        biases[int(token)] = number
    return biases


_TOKEN = re.compile(r"\d{1,10}")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


def _parse_int(text: str) -> int:
    """A whole number, also with thousands separators ("2,048"); other commas raise ValueError."""
    return int(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)


def _parse_biases(text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    return {token.strip(): float(bias) for token, _, bias in pairs}


_KIND_WORDS = {
    "bool": "true or false",
    "size": "a size such as 512MiB, 2GB, 1.5G (GiB) or a number of bytes, up to 1024TiB",
    "text": "a text in UTF-8",
    "texts": "a list of texts in UTF-8",
    "paths": "a list of absolute paths, or of such that begin with ~",
    "biases": "token ids with a number from -100 to 100 each, such as 42=-100",
}
_CHECKS: dict[Kind, Callable[[object], Value]] = {
    "bool": _check_bool,
    "int": _check_int,
    "float": _check_float,
    "size": _check_size,
    "text": _check_text,
    "texts": _check_texts,
    "paths": _check_paths,
    "biases": _check_biases,
}
_PARSERS: dict[Kind, Callable[[str], object]] = {
    "bool": lambda text: _BOOLS.get(text.strip().lower(), text),
    "int": _parse_int,
    "float": float,
    "texts": lambda text: (text,) if text else (),
    "paths": lambda text: tuple(path for path in text.split(os.pathsep) if path),
    "biases": _parse_biases,
}

GENERAL = (
    Key("model", "text", "model of new chats; unset: smollm2 if it is installed, else guide"),
    Key("system", "text", "system prompt", default=""),
    Key(
        "backend",
        "text",
        "what runs models; auto: what suits the file and this machine, as hearth doctor says",
        choices=tuple(name for name in get_args(BackendName) if name != "remote"),
        default="auto",
    ),
    Key(
        "offline",
        "bool",
        "open no network connection; HF_HUB_OFFLINE=1 means the same",
        default=False,
    ),
    Key(
        "library_folders",
        "paths",
        "further folders whose models are listed and used in place, 8 levels deep",
        default=(),
    ),
    Key(
        "host_idle_s",
        "float",
        "seconds the host process stays when it is not needed",
        low=0,
        default=10.0,
    ),
    Key(
        "models_memory",
        "size",
        "memory for all loaded models; auto: nine tenths of what was free before the first",
        low=1,
        high=2**50,
        auto=True,
    ),
    Key(
        "max_models",
        "int",
        "models that are loaded at the same time; auto: as many as fit",
        low=1,
        high=256,
        auto=True,
    ),
    Key("theme", "text", "colours of the terminal app", default="textual-dark"),
    Key("serve_host", "text", "address or name that the server listens on", default="127.0.0.1"),
    Key(
        "serve_port",
        "int",
        "port of the server; 0 picks a free one",
        low=0,
        high=65_535,
        default=4242,
    ),
    Key(
        "serve_key",
        "bool",
        "require an API key of clients; it is created once and kept in a file",
        default=False,
    ),
    Key(
        "strict_requests",
        "bool",
        "the endpoint refuses parameters that have no effect here, instead of reporting them",
        default=False,
    ),
    Key(
        "serve_manage",
        "bool",
        "clients of the server may download, delete and copy models; auto: only where no other "
        "machine can reach it",
        auto=True,
    ),
    Key(
        "serve_allow_hosts",
        "texts",
        "further host names by which clients may reach the server, such as that of a proxy",
        default=(),
    ),
)

LOADING = (
    Key(
        "context",
        "int",
        "context length in tokens; auto: what was trained or fits",
        low=1,
        high=_INT32_MAX,
        auto=True,
    ),
    Key("max_sessions", "int", "sequences that run at the same time", low=1, high=256),
    Key(
        "max_batch_tokens",
        "int",
        "tokens of one step, prefill and decode of all sessions together",
        low=1,
        high=8192,
    ),
    Key(
        "max_waiting",
        "int",
        "requests that may wait while others run; more are refused as busy",
        low=0,
        high=65_536,
    ),
    Key(
        "target_itl_ms",
        "float",
        "while others stream, prefill is cut to steps of about this many milliseconds",
        low=1,
        high=60_000,
    ),
    Key(
        "speculate",
        "text",
        "guess tokens before each step; auto: where that pays; ngram: what followed when the text"
        " was like this; draft: what the draft model says; medusa: what the heads of the model say",
        choices=get_args(Speculate),
    ),
    Key(
        "speculate_rule",
        "text",
        "which guesses are kept; match: those that are drawn as well, so that text does not depend"
        " on them; rejection: more of a draft model's, for requests without a seed",
        choices=get_args(SpeculateRule),
    ),
    Key(
        "draft",
        "text",
        "small model of the same vocabulary that guesses tokens, or Medusa heads for the model",
        default="",
    ),
    Key("draft_tokens", "int", "tokens that are guessed at most", low=1, high=32),
    Key(
        "kv_budget",
        "size",
        "memory for keys and values of all sessions; auto: what memory_fraction leaves",
        low=1,
        high=2**50,
        auto=True,
        field="kv_budget_bytes",
    ),
    Key(
        "kv_disk_budget",
        "size",
        "disk space for keys and values of chats, which a restart continues from; 0: none",
        low=0,
        high=2**50,
        field="kv_disk_budget_bytes",
    ),
    Key("kv_type", "text", "type of the KV cache", choices=get_args(KvType)),
    Key(
        "kv_type_v",
        "text",
        "type of its values; auto: as kv_type, which is that of keys then",
        choices=get_args(KvType),
        auto=True,
    ),
    Key(
        "kv_pool",
        "text",
        "memory for keys and values: grow when it is needed, or static, all at load",
        choices=get_args(KvPool),
    ),
    Key(
        "memory_fraction",
        "float",
        "share of the free memory that weights, keys and values may take",
        above=0,
        high=1,
    ),
    Key(
        "gpu_layers",
        "int",
        "layers on the GPU; auto: all, where there is one",
        low=0,
        high=_INT32_MAX,
        auto=True,
    ),
    Key(
        "device",
        "text",
        "what the native runner computes on: cpu, mps, cuda or cuda:N; auto: the first GPU",
        auto=True,
    ),
    Key(
        "threads",
        "int",
        "threads for decode; auto: measured, fewer where other programs need cores",
        low=1,
        high=512,
        auto=True,
    ),
    Key("batch_threads", "int", "threads for prefill; auto: measured", low=1, high=512, auto=True),
    Key(
        "rope_scaling",
        "text",
        "how positions beyond the trained context are scaled; auto: as the model's file says",
        choices=get_args(RopeScalingName),
        auto=True,
    ),
    Key(
        "rope_factor",
        "float",
        "how many times the trained context is stretched; auto: as the model's file says",
        low=1,
        high=1024,
        auto=True,
    ),
    Key(
        "rope_base",
        "float",
        "base of the rotary frequencies (theta); auto: as the model's file says",
        low=1,
        high=1e12,
        auto=True,
    ),
    Key(
        "rope_original_context",
        "int",
        "tokens that YaRN takes the model to be trained for; auto: as the model's file says",
        low=1,
        high=_INT32_MAX,
        auto=True,
    ),
    Key(
        "dtype",
        "text",
        "numbers of the native runner; auto: as stored, where the device can use them",
        choices=get_args(Dtype),
        auto=True,
    ),
    Key(
        "deterministic",
        "bool",
        "greedy answers of the native runner do not depend on what else runs; slower",
    ),
    Key("flash_attention", "bool", "flash attention; auto: the library decides", auto=True),
    Key(
        "extra_buffers", "bool", "repacked weights; auto: on where the self-test passed", auto=True
    ),
    Key("keep_alive_s", "float", "unload after this many idle seconds; negative: not by itself"),
)


def _key_of(field: Field) -> Key:
    """The key of a number in requests, whose range and meaning `field` declares."""
    return Key(
        field.name,
        field.kind,
        field.help,
        low=None if field.above_minimum else field.minimum,
        above=field.minimum if field.above_minimum else None,
        high=field.maximum,
        auto=field.optional,
    )


_ASKED = tuple(one for one in REQUEST_FIELDS if one.name in ("max_tokens", "attention_sinks"))

SAMPLING = (
    *(_key_of(field) for field in (*SAMPLING_FIELDS, *_ASKED)),
    Key("stop", "texts", "end before this text", default=()),
    Key(
        "context_overflow",
        "text",
        "a conversation that exceeds the context: drop-turns leaves its oldest turns out, refuse "
        "is an error; auto: drop-turns in chats, refuse where a program sends the conversation",
        choices=get_args(Overflow),
        auto=True,
    ),
    Key("dry_sequence_breakers", "texts", "DRY: texts that end a run"),
    Key("logit_bias", "biases", "added to the logits of tokens, by id; -100 bans a token"),
)

MODEL_ONLY = (
    Key("system", "text", "system prompt for this model"),
    Key(
        "chat_template",
        "text",
        "file with a Jinja chat template to use in place of the model's own",
    ),
)

REMOTE = (
    Key("url", "text", "the base of its API, such as http://10.0.0.5:8000/v1", default=""),
    Key("model", "text", "what the other end calls the model; empty: it has only one", default=""),
    Key(
        "server",
        "text",
        "what it is, and so what it understands; auto: told by its list of models",
        choices=get_args(remote_server.Kind),
        auto=True,
    ),
    Key("key_env", "text", "environment variable that has its API key", default=""),
    Key("key_file", "text", "file, readable for you alone, that has its API key", default=""),
    Key(
        "timeout_s",
        "float",
        "longest silence in seconds before it is given up",
        above=0,
        high=86_400,
        default=600.0,
    ),
)
SECTIONS: Mapping[str, tuple[Key, ...]] = {"": GENERAL, "load": LOADING, "sampling": SAMPLING}
"""The tables of the settings file that apply to all models; "" is the top level."""

ALL = {key.name: key for key in (*GENERAL, *LOADING, *SAMPLING)}

# The sampling that the authors recommend. The system prompt replaces theirs, with which the model
# answers "What is the capital of France?" in French most of the time.
MODEL_DEFAULTS: Mapping[str, Mapping[str, Value]] = {
    "smollm2": {
        "system": "You are a helpful AI assistant. Answer in English.",
        "temperature": 0.2,
        "top_p": 0.9,
    }
}
"""Defaults of individual models, by name."""
UNSET_SAMPLING: Mapping[str, Value] = {"top_k": 0, "min_p": 0.0, "repetition_window": -1}
"""Defaults for remote models: sampling steps that OpenAI's API lacks are off."""


_UNSET: Final = (ModelSettings(), SamplingParams())


def default_of(key: Key) -> Value:
    """The value of `key` when it is not set: its own default, or that of the contract's field."""
    if key.name == "model":
        return "smollm2" if find_paths().smollm2_file.is_file() else "guide"
    for defaults in _UNSET:
        if hasattr(defaults, key.target):
            value: Value = getattr(defaults, key.target)
            return value
    return key.default
