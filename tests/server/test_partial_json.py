"""Reading JSON that was cut off at any character."""

from __future__ import annotations

import json

import pytest

from hearth.app.server.partial_json import read_partial

WHOLE = r'{"a": "x\\u12 \u00e9 \"q\" \\", "b": [1.5, true, {"c": null}], "d": {"e": -2}}'


def is_part(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and is_part(part[name], whole[name]) for name in part)
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(is_part, part, whole))
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    return part == whole


@pytest.mark.parametrize("length", range(1, len(WHOLE) + 1))
def test_what_was_written_is_kept_and_nothing_else(length) -> None:
    assert is_part(read_partial(WHOLE[:length]), json.loads(WHOLE))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"city": "Be', {"city": "Be"}),
        ('{"a": 1, "b": 12', {"a": 1}),
        ('[1, [2], "x\\', [1, [2], "x"]),
        ('{"a": {"b": [', {"a": {"b": []}}),
    ],
)
def test_strings_are_kept_and_numbers_are_left_out(text, value) -> None:
    assert read_partial(text) == value


@pytest.mark.parametrize("text", ["", "x", "]", "[" * 100_000])
def test_what_is_no_beginning_is_an_error(text) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_partial(text)
