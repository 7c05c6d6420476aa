"""Checks of single values, which the checks of whole calls are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hearth.backends.contract.fields import MOST_TOKENS, Field, plain
from hearth.backends.errors import InvalidParameter, LimitExceeded, UnknownToken


def check_number(field: Field, value: object) -> None:
    """Raises `InvalidParameter` unless `value` is what `field` says."""
    if value is None and field.optional:
        return
    if field.kind == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(field.name, "a whole number", value)
    elif not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong_type(field.name, "a number", value)
    too_low = value < field.minimum or (field.above_minimum and value == field.minimum)
    if too_low or value > field.maximum or math.isnan(value):
        raise InvalidParameter(
            field.name,
            f"{field.name} is {plain(value)}, outside {field.interval}.",
            f"Choose a value in {field.interval}.",
        )


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int | None) -> None:
    """Raises `InvalidParameter` unless these are ids, at least one; `vocab_size` None: any."""
    check_list(param, token_ids)
    if not token_ids:
        raise empty(param)
    most = MOST_TOKENS if vocab_size is None else vocab_size
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < most:
        return  # All of them at once: there may be hundreds of thousands.
    for token in token_ids:
        check_token_id(param, token, vocab_size)


def check_token_id(param: str, token: object, vocab_size: int | None) -> None:
    """Raises `UnknownToken` unless `token` is an id below `vocab_size`, if that is known."""
    if not isinstance(token, int) or isinstance(token, bool):
        raise wrong_type(param, "token ids (whole numbers)", token)
    if token < 0 or token >= (MOST_TOKENS if vocab_size is None else vocab_size):
        size = "" if vocab_size is None else f" of {vocab_size:,} tokens"
        raise UnknownToken(
            param,
            f"{param} has the token id {plain(token)}, which is not in the vocabulary{size}.",
            "Use ids that this model's tokenizer gives.",
        )


def check_strings(param: str, strings: Iterable[object], most: int, longest_bytes: int) -> None:
    """Raises `InvalidParameter` unless these are at most so many strings, none empty or longer."""
    check_list(param, strings, most)
    for string in strings:
        if not check_text(param, string, longest_bytes):
            raise InvalidParameter(
                param, f"{param} has an empty string.", "Leave the empty string out."
            )


def check_list(
    param: str,
    items: Any,
    most: int | None = None,
    kind: type | tuple[type, ...] = (tuple, list),
    wanted: str = "a list",
) -> None:
    """Raises `InvalidParameter` unless `items` is a list (or a `kind`), `LimitExceeded` if it has
    more items than `most`.
    """
    check_type(param, items, kind, wanted)
    if most is not None and len(items) > most:
        raise LimitExceeded(
            param,
            f"{param} has {len(items):,} items; at most {most:,} are possible.",
            "Send fewer.",
        )


def check_type(param: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raises `InvalidParameter` unless `value` is a `kind`, which people call `wanted`."""
    if not isinstance(value, kind):
        raise wrong_type(param, wanted, value)


def check_flag(param: str, value: object) -> None:
    """Raises `InvalidParameter` unless `value` is true or false."""
    if type(value) is not bool:
        raise wrong_type(param, "true or false", value)


def check_one_of(param: str, value: object, names: Sequence[str]) -> None:
    """Raises `InvalidParameter` unless `value` is one of `names`."""
    if value not in names:
        shown = repr(value)[:80]
        raise InvalidParameter(
            param, f"{param} is {shown}, which is unknown.", f"Use one of {', '.join(names)}."
        )


def check_size(param: str, size_bytes: int, most_bytes: int) -> None:
    """Raises `LimitExceeded` if there are more bytes than `most_bytes`."""
    if size_bytes > most_bytes:
        raise LimitExceeded(
            param,
            f"{param} has {size_bytes:,} bytes; at most {most_bytes:,} are possible.",
            "Send less.",
        )


def depth_of(value: Any, enough: int) -> int:
    """How many levels of lists and objects `value` has, counted up to `enough`."""
    depth = 0
    level = [value]
    while depth < enough:
        inner = [one for one in level if isinstance(one, (dict, list, tuple))]
        if not inner:
            break
        depth += 1
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
    return depth


def check_text(param: str, text: object, most_bytes: int | None = None) -> bytes:
    """The UTF-8 of `text`; raises `InvalidParameter` if it has none, `LimitExceeded` if that is
    longer than `most_bytes`.
    """
    if not isinstance(text, str):
        raise wrong_type(param, "text", text)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"{param} is not valid Unicode: a lone surrogate stands at character {error.start}.",
            "Send text that can be written as UTF-8.",
        ) from error
    if most_bytes is not None:
        check_size(param, len(encoded), most_bytes)
    return encoded


def check_some_text(param: str, text: object) -> None:
    """Raises `InvalidParameter` unless `text` is text, and not empty."""
    if not check_text(param, text):
        raise empty(param)


def wrong_type(param: str, wanted: str, value: object) -> InvalidParameter:
    """The error for a `value` that is not what is `wanted`."""
    return InvalidParameter(
        param, f"{param} must be {wanted}, not {type(value).__name__}.", f"Send {wanted}."
    )


def empty(param: str) -> InvalidParameter:
    """The error for a part of a call that must not be empty."""
    return InvalidParameter(
        param, f"{param} is empty, so there is nothing to answer.", "Send some text."
    )
