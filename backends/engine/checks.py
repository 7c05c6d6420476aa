"""Checks of single values, which the checks of whole calls are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hearth.backends.engine.fields import MOST_TOKENS, Field, plain
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
    if not isinstance(token_ids, (tuple, list)):
        raise wrong_type(param, "a list of token ids", token_ids)
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
    """Raises `InvalidParameter` unless these are at most so many texts, none empty or longer."""
    if not isinstance(strings, (tuple, list)):
        raise wrong_type(param, "a list of strings", strings)
    check_list(param, strings, most)
    for string in strings:
        size = len(check_text(param, string))
        if not 1 <= size <= longest_bytes:
            raise InvalidParameter(
                param,
                f"{param} has a string of {size:,} bytes; each must have 1 to {longest_bytes}.",
                "Shorten the string, or leave out an empty one.",
            )


def check_list(param: str, items: object, most: int) -> None:
    """Raises `InvalidParameter` unless `items` is a list, `LimitExceeded` if it has more."""
    if not isinstance(items, (tuple, list)):
        raise wrong_type(param, "a list", items)
    if len(items) > most:
        raise LimitExceeded(
            param,
            f"{param} has {len(items):,} items; at most {most:,} are possible.",
            "Send fewer.",
        )


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


def check_text(param: str, text: object) -> bytes:
    """The UTF-8 of `text`; raises `InvalidParameter` if it has none."""
    if not isinstance(text, str):
        raise wrong_type(param, "text", text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"{param} is not valid Unicode: a lone surrogate stands at character {error.start}.",
            "Send text that can be written as UTF-8.",
        ) from error


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
