"""Endless repetition is ended where the schema allows it, and nothing else is."""

import json

import pytest

from byte_tokenizer import ByteTokenizer
from hearth.backends.engine.loop_closing import repeated_bytes
from hearth.backends.text.output.rules import json_rule

TOKENIZER = ByteTokenizer()
END = min(TOKENIZER.end_ids)


def written(matcher, begin, unit, most=3000):
    """The text of a model that writes `begin` and then repeats `unit`; where the grammar forbids
    that, it writes the first byte that the grammar allows.
    """
    text, wanted = bytearray(), bytearray(begin.encode())
    while len(text) < most and not matcher.complete:
        if not wanted:
            wanted += unit.encode()
        byte = wanted.pop(0)
        if not matcher.allows(byte):
            byte = int(matcher.allowed()[:256].argmax())
            wanted.clear()
        matcher.accept(byte)
        text.append(byte)
    return text.decode()


def of(schema):
    return f"start: {json_rule(schema)}"


TEXT, NUMBERS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
TREE = {
    "type": "object",
    "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    "unit", ["USA, ", "a", "é\\n", "all the same words for sixty characters, " * 2]
)
def test_a_string_that_repeats_itself_is_closed(grammars, unit):
    matcher = grammars.matcher(of(TEXT), "it")
    text = written(matcher, '"The ', unit)
    assert len(matcher.notices) == 1
    value = json.loads(text)
    assert value.startswith("The ")
    assert 256 <= len(text.encode()) <= max(300, 5 * len(unit))


def test_a_mask_that_closes_a_string_says_so(grammars):
    """Rejection sampling draws from masks, so that no token is refused."""
    matcher = grammars.matcher(of(TEXT), "it")
    for byte in b'"The ' + b"USA, " * 20:
        matcher.accept(byte)
    assert matcher.allowed()[ord("U")] and not matcher.notices
    for byte in b"USA, " * 60:
        matcher.accept(byte)
    assert not matcher.allowed()[ord("U")] and len(matcher.notices) == 1


def test_a_list_that_repeats_itself_is_closed(grammars):
    value = json.loads(written(grammars.matcher(of(NUMBERS), "it"), "[1, 2, ", "0, "))
    assert value[:2] == [1, 2] and 170 <= len(value) <= 180 and set(value[2:]) == {0}


def test_a_list_of_choices_that_repeats_itself_is_closed(grammars):
    schema = {"type": "array", "items": {"enum": ["hello", "null"]}}
    value = json.loads(written(grammars.matcher(of(schema), "it"), '["null", ', '"hello", '))
    assert 50 < len(value) < 70


def test_a_list_that_repeats_itself_with_slips_is_closed(grammars):
    matcher = grammars.matcher(of({"type": "array", "items": TEXT}), "it")
    unit = '"the", ' * 40 + '"the?","the", '
    value = json.loads(written(matcher, "[", unit))
    assert 140 < len(value) < 180 and set(value) == {"the", "the?"}


def test_a_table_whose_rows_differ_is_not_closed(grammars):
    rows = "".join(f'{{"id": {n}, "kind": "book", "in_stock": true}}, ' for n in range(100, 200))
    matcher = grammars.matcher(of({"type": "array", "items": {"type": "object"}}), "it")
    assert written(matcher, "[" + rows, "", most=len(rows)).startswith("[" + rows[:-1])


def test_a_tree_that_repeats_itself_is_closed(grammars):
    text = written(grammars.matcher(of(TREE), "it"), "", '{"name": "x", "children": [')
    assert json.loads(text)["name"] == "x" and len(text) < 1200


def test_an_object_with_the_same_members_again_is_closed(grammars):
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    text = written(grammars.matcher(of(schema), "it"), '{"art": 5, ', '"]{":1000000, ')
    assert set(json.loads(text)) == {"art", "]{"} and 128 < len(text) < 160


@pytest.mark.parametrize(
    ("schema", "least"),
    [({**TEXT, "minLength": 900}, 900), ({**NUMBERS, "minItems": 400}, 400)],
)
def test_what_a_schema_demands_is_written(grammars, schema, least):
    begin, unit = ('"', "ab") if schema["type"] == "string" else ("[", "0, ")
    assert least <= len(json.loads(written(grammars.matcher(of(schema), "it"), begin, unit))) < 950


def test_free_text_may_repeat_itself(grammars):
    lark = f'start: /(?s:[^|]*)/ "|" {json_rule(TEXT)}'
    assert len(written(grammars.matcher(lark, "it"), '"', '" ["', most=2000)) == 2000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"abc" * 40, 0),
        (b"abc" * 80, 128),
        (b"abc" * 86, 256),
        (b"x" * 1000 + b"y", 0),
        (b"x" * 1000, 512),
        (b"".join(b"line %d, " % n for n in range(200)), 0),
        (bytes(range(100, 200)) * 3, 0),
        (bytes(range(100, 200)) * 4, 400),
        (bytes(range(100, 200)) * 6, 512),
        (b'"the", ' * 60 + b'"the","the?", ' + b'"the", ' * 20 + b'"then", ', 0),
        (b'"the", ' * 80 + b'"the","the?", ' + b'"the", ' * 72, 1024),
        (b"".join(b'{"id": %d, "kind": "book", "new": true}, ' % n for n in range(100, 200)), 0),
    ],
)
def test_repetition(text, found):
    assert repeated_bytes(text) == found
