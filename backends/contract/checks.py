"""Checks of single values, from which the checks of whole calls are built.

Types are not checked one by one: values from a frame have the types that the contract declares, and
`typed` checks values from elsewhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence, Sized
from typing import Any, TypeVar, get_args

from hearth.backends.contract.fields import MOST_TOKENS, Field, numbers_of, plain
from hearth.backends.contract.models import Dtype, KvPool, KvType, ModelSettings
from hearth.backends.contract.rope import RopeScalingName
from hearth.backends.contract.sampling import Speculate, SpeculateRule
from hearth.backends.errors import InvalidParameter, LimitExceeded, UnknownToken

_T = TypeVar("_T")


def typed(value: _T) -> _T:
    """`value`, a dataclass of the contract, with every field converted to its declared type.

    Raises:
        InvalidParameter: a field has another type; `param` is its path, without `sampling`.
    """
    import msgspec  # Not at module level: the native runner may check settings without msgspec.

    try:
        return msgspec.convert(
            msgspec.to_builtins(value, builtin_types=(bytes,)), type(value), strict=True
        )
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        what, _, path = str(error).partition(" - at ")
        match = re.search(r"\$\.(?:sampling\.)?([^`]*)`", path)
        param = match[1].removesuffix("[...]") if match else "request"
        raise InvalidParameter(
            param, f"{param} has a wrong type: {what}.", "Correct it."
        ) from error


def check_number(field: Field, value: float | None) -> None:
    """Raises `InvalidParameter` unless `value` is in the range of `field`."""
    if value is None and field.optional:
        return
    assert value is not None
    too_low = value < field.minimum or (field.above_minimum and value == field.minimum)
    if too_low or value > field.maximum or math.isnan(value):
        raise InvalidParameter(
            field.name,
            f"{field.name} is {plain(value)}, outside {field.interval}.",
            f"Choose a value in {field.interval}.",
        )


def check_token_ids(param: str, ids: Collection[int], vocab_size: int | None) -> None:
    """Raises `UnknownToken` unless all of `ids` are in [0, `vocab_size`); if `vocab_size` is None,
    the limit is `MOST_TOKENS`.
    """
    most = MOST_TOKENS if vocab_size is None else vocab_size
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < most:
            size = "" if vocab_size is None else f" of {vocab_size:,} tokens"
            raise UnknownToken(
                param,
                f"{param} has the token id {plain(token)}, which is not in the vocabulary{size}.",
                "Use ids that this model's tokenizer gives.",
            )


def check_strings(param: str, strings: Sequence[str], most: int, longest_bytes: int) -> None:
    """Raises `InvalidParameter` if there are more than `most` strings, or one is empty or longer
    than `longest_bytes`.
    """
    check_count(param, strings, most)
    for string in strings:
        if not check_text(param, string, longest_bytes):
            raise InvalidParameter(
                param, f"{param} has an empty string.", "Leave the empty string out."
            )


def check_count(param: str, items: Sized, most: int) -> None:
    """Raises `LimitExceeded` if there are more `items` than `most`."""
    if len(items) > most:
        raise LimitExceeded(
            param,
            f"{param} has {len(items):,} items; at most {most:,} are possible.",
            "Send fewer.",
        )


def check_one_of(param: str, value: object, names: Collection[str]) -> None:
    """Raises `InvalidParameter` unless `value` is one of `names`."""
    if value not in names:
        shown = repr(value)[:80]
        raise InvalidParameter(
            param, f"{param} is {shown}, which is unknown.", f"Use one of {', '.join(names)}."
        )


def check_settings(settings: ModelSettings, max_sequences: int) -> None:
    """Refuse values that no runner supports; each runner checks its own further restrictions.

    Args:
        max_sequences: most sequences that the runner can run at the same time.

    Raises:
        InvalidParameter: with the name of the field and its bounds.
    """
    for field in (*numbers_of(ModelSettings), Field("max_sessions", "int", 1, max_sequences, "")):
        value = getattr(settings, field.name)
        kinds = (int,) if field.kind == "int" else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise InvalidParameter(
                field.name,
                f"{field.name} is {value!r}, not a number of its kind.",
                "Correct it.",
            )
        check_number(field, value)
    choices = {
        "kv_type": KvType,
        "kv_type_v": KvType,
        "kv_pool": KvPool,
        "dtype": Dtype,
        "rope_scaling": RopeScalingName,
        "speculate": Speculate,
        "speculate_rule": SpeculateRule,
    }
    for name, names in choices.items():
        value = getattr(settings, name)
        if value is not None or name in ("kv_type", "kv_pool", "speculate", "speculate_rule"):
            check_one_of(name, value, get_args(names))
    _check_device(settings)
    both = (settings.threads, settings.batch_threads)
    if settings.deterministic and None not in both and len(set(both)) > 1:
        raise InvalidParameter(
            "batch_threads",
            f"threads is {both[0]} and batch_threads {both[1]}; with deterministic they are one.",
            "Set only threads (--threads).",
        )


def _check_device(settings: ModelSettings) -> None:
    """Check the form of `device` and its consistency with `gpu_layers`; whether the device exists
    is checked by the runner.
    """
    device, layers = settings.device, settings.gpu_layers
    if device is None:
        return
    if not isinstance(device, str) or not re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", device):
        raise InvalidParameter(
            "device",
            f"device is {device!r}, which is none.",
            "Use cpu, mps, cuda, or cuda:N for one of several cards.",
        )
    if layers is not None and (layers == 0) != (device == "cpu"):
        raise InvalidParameter(
            "device",
            f"device is {device} and gpu_layers {layers}, which contradict each other.",
            "Set only one of device (--device) and gpu_layers (--gpu-layers).",
        )


def context_notices(
    settings: ModelSettings, context: int, trained: int, *, is_budget: bool
) -> tuple[str, ...]:
    """Notices for the user about the planned context.

    Args:
        context: most tokens of a sequence.
        trained: tokens that the model was trained for; 0: unknown.
        is_budget: the context is limited by the KV budget.
    """
    notices = []
    if context < (settings.context or trained):
        reason = "what the KV budget holds" if is_budget else "what fits in memory"
        notices.append(
            f"Context is {context:,} tokens, {reason}; the model was trained for {trained:,}."
        )
    if settings.context is not None and 0 < trained < settings.context:
        notices.append(
            f"Context {settings.context:,} is beyond the {trained:,} tokens the model was "
            "trained for: expect poor answers past that."
        )
    return tuple(notices)


def depth_of(value: Any, enough: int) -> int:
    """Number of nested levels of lists and objects in `value`, counted up to `enough`."""
    depth = 0
    level = [value]
    while depth < enough:
        inner = [one for one in level if isinstance(one, (dict, list, tuple))]
        if not inner:
            break
        depth += 1
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
    return depth


def check_text(param: str, text: str, most_bytes: int | None = None) -> bytes:
    """`text` as UTF-8. Raises `InvalidParameter` if it cannot be encoded, `LimitExceeded` if the
    result is longer than `most_bytes`.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"{param} is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X})"
            f" stands at character {error.start}.",
            "Send text that can be written as UTF-8.",
        ) from error
    if most_bytes is not None and len(encoded) > most_bytes:
        raise LimitExceeded(
            param,
            f"{param} has {len(encoded):,} bytes; at most {most_bytes:,} are possible.",
            "Send less.",
        )
    return encoded


def json_text(param: str, value: Any) -> str:
    """`value` as JSON; raises `InvalidParameter` if it cannot be written as JSON."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(
            param,
            f"{param} cannot be written as JSON: {error}.",
            "Use objects, lists, texts, finite numbers, true, false and null.",
        ) from error


def check_not_empty(param: str, given: Sized) -> None:
    """Raises `InvalidParameter` if `given`, a part of a call, is empty."""
    if not given:
        raise InvalidParameter(
            param, f"{param} is empty, so there is nothing to answer.", "Send some text."
        )
