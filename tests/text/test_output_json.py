"""The scanner agrees with the standard library on what JSON is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.text.output.json_scanner import DEEPEST, JsonScanner, Step, is_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
PIECES = st.sampled_from(
    [*'{}[]",:\\-+.0 1eE\n\tu', "true", "null", "fals", '"a"', '"\\u00e9"', "1.5", '{"a":', "[1,"]
)


def refuse(constant: str) -> None:
    raise ValueError(constant)


def is_standard(text: str) -> bool:
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return text == text.strip(" \t\n\r")


@given(VALUES, st.booleans())
def test_every_value_is_read_to_its_end(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert is_json(text)
    scanner = JsonScanner()
    steps = [scanner.take(char) for char in text]
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert steps == [Step.MORE] * len(text)
        assert scanner.take(",") is Step.BEYOND
    else:
        assert steps == [Step.MORE] * (len(text) - 1) + [Step.END]


@given(st.lists(PIECES).map("".join))
def test_what_is_no_json_is_refused(text: str) -> None:
    assert is_json(text) == is_standard(text)


@pytest.mark.parametrize(
    "text", ["", "NaN", "Infinity", "01", "1.", ".5", "+1", "1e", "'a'", '"\n"', '"\\x"', "[1,]"]
)
def test_what_looks_like_json_is_refused(text: str) -> None:
    assert not is_json(text)


def test_nesting_has_a_limit() -> None:
    assert is_json("[" * DEEPEST + "]" * DEEPEST)
    assert not is_json("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))
