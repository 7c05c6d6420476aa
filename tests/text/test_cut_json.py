"""JSON that was cut off: what there is of it is read, anything else is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.text.cut_json import read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=3), VALUES), st.booleans(), st.data())
def test_every_beginning_of_an_object_is_one(value, ascii_only, data):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert read_json(text) == value
    size = data.draw(st.integers(1, len(text)))
    read = read_json(text[:size])
    assert list(read) == list(value)[: len(read)]
    assert all(read[key] == value[key] for key in list(read)[:-1])
    json.dumps(read, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "\\ud83d\\ude', {"a": ""}),
        ('{"a": "\\ud83d\\ude00\\u00', {"a": "\U0001f600"}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": [1, 2.', {"a": [1]}),
        ('{"a": tru', {}),
        ('{"a": {"b": [{', {"a": {"b": [{}]}}),
    ],
)
def test_what_is_left_of_it(text, value):
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "{'a", '{"a" 1', "{1", "{]", '{"a": }', '{"a": 1}}', '{"a": 1,,', '{"a": NaN'),
        *('{"a": 1.2.3', '{"a": +', '{"a": "b""'),
        '{"a": ' + '[""' * 100_000,
    ],
)  # fmt: skip
def test_what_does_not_begin_as_json_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(text)


def test_numbers_that_json_does_not_have_are_read_where_they_are_wanted():
    text = '{"a": NaN, "b": "NaN", "c": [-Infinity, "Infin'
    assert read_json(text, parse_constant=str) == {
        "a": "NaN",
        "b": "NaN",
        "c": ["-Infinity", "Infin"],
    }
