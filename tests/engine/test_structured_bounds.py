"""Hearth limits the length of numbers and formatted texts where a schema does not."""

import json

import pytest

from byte_tokenizer import fits
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.output.rules import json_rule

NUMBER = {"type": "number"}
DIGITS = "1234567890" * 3


def matcher_of(grammars, schema):
    return grammars.matcher(f"start: {json_rule(schema)}", "it")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NUMBER, ["0", "-1.5", "0.123456789", "9007199254740991"], [f"0.{DIGITS}", DIGITS, "1e5"]),
        ({"type": "integer"}, ["-9007199254740991"], ["9007199254740992", "1.0"]),
        ({"type": ["number", "null"], "maximum": 5}, ["null", "5", "-7.25"], ["6", f"1.{DIGITS}"]),
        ({"type": "integer", "minimum": 10**17}, ["100000000000000001"], ["5"]),
        ({"type": "number", "minimum": 1e-12, "maximum": 2e-12}, ["0.0000000000015"], ["0.5"]),
        ({"enum": [10**20, 0.5], "type": "number"}, [str(10**20), "0.5"], ["5"]),
        ({"type": "number", "multipleOf": 0.25}, ["1.25"], ["1.3", "1.2500"]),
        ({"type": "array", "items": NUMBER}, ["[1.5, 2]"], [f"[1.{DIGITS}]"]),
        ({"type": "array", "prefixItems": [NUMBER]}, ["[1.5]"], [f"[1.{DIGITS}]"]),
        ({"type": "object", "additionalProperties": NUMBER}, ['{"a":1}'], [f'{{"a":{DIGITS}}}']),
        ({"anyOf": [NUMBER, {"type": "null"}]}, ["1", "null"], [f"1.{DIGITS}"]),
        ({"$defs": {"n": NUMBER}, "$ref": "#/$defs/n"}, ["1"], [f"1.{DIGITS}"]),
        (
            {"type": "string", "format": "time"},
            ['"10:00:00Z"', '"10:00:00.123456789+02:00"'],
            [f'"10:00:00.{DIGITS}Z"'],
        ),
        ({"type": "string", "format": "hostname"}, ['"a.example"'], [f'"{"a." * 127}com"']),
        ({"type": "string", "format": "hostname", "maxLength": 4}, ['"a.de"'], ['"aa.de"']),
        ({"type": "string"}, [f'"{" ".join(map(str, range(1500)))}"'], []),
    ],
)
def test_numbers_and_formats_come_to_an_end(grammars, schema, good, bad):
    for text in good:
        assert fits(matcher_of(grammars, schema), text), text
    for text in bad:
        assert not fits(matcher_of(grammars, schema), text), text


def test_constants_are_left_alone(grammars):
    value = {"properties": {"type": "number"}, "items": {"type": "number"}}
    assert fits(matcher_of(grammars, {"const": value}), json.dumps(value))


KIND = {"type": "object", "required": ["kind", "value"], "additionalProperties": False}


def kind(name, value):
    return {**KIND, "properties": {"kind": {"const": name}, "value": value}}


def test_branches_that_exclude_each_other_are_bounded(grammars):
    schema = {"oneOf": [kind("a", NUMBER), kind("b", {"type": "null"})]}
    assert fits(matcher_of(grammars, schema), '{"kind": "a", "value": 1.5}')
    assert not fits(matcher_of(grammars, schema), f'{{"kind": "a", "value": 1.{DIGITS}}}')


def test_bounds_do_not_make_branches_seem_to_exclude_each_other(grammars):
    schema = {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 10**17}]}
    with pytest.raises(InvalidParameter, match="oneOf"):
        matcher_of(grammars, schema)
