"""Schemas as the compiler gets them: what is written follows the schema that was given, objects
are closed, and nothing that can be satisfied is refused.
"""

import json
import random
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal, Optional, Union
from uuid import UUID

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, TypeAdapter

from hearth.backends.engine.grammar_library import (
    GrammarRefused,
    Vocabulary,
    compile_grammar,
    make_tokenizer,
)
from hearth.backends.text.output.json_schema import prepared
from hearth.backends.text.output.rules import check_schema, json_rule

END = 256
TRIE = make_tokenizer(
    Vocabulary([*(bytes([n]) for n in range(END)), b""], [END], [END], list), [END]
)


def compiled(schema):
    check_schema(schema, "it")
    return compile_grammar(TRIE, f"start: {json_rule(schema)}")


def fits(schema, value):
    matcher = compiled(schema)
    text = value if isinstance(value, str) else json.dumps(value)
    return (
        matcher.validate_tokens(list(text.encode())) == len(text.encode())
        and matcher.consume_tokens(list(text.encode()))
        and matcher.is_accepting()
    )


def written(schema, seed=0, longest=400):
    """A text that the grammar allows; one that ends soon after `longest` bytes."""
    matcher, draw, text = compiled(schema), random.Random(seed), bytearray()
    while not matcher.is_stopped():
        bits = matcher.compute_bitmask()
        allowed = [n for n in range(END) if bits[n // 8] >> (n % 8) & 1]
        if matcher.is_accepting() and (not allowed or len(text) > longest or draw.random() < 0.5):
            break
        assert allowed, bytes(text)
        closers = [n for n in allowed if n in b'"}]0']
        plain = [n for n in allowed if n in b"abc01{[tfn,:-. "] or allowed
        byte = draw.choice(closers if closers and draw.random() < 0.5 else plain)
        if len(text) > longest:
            byte = draw.choice([*closers, *plain])
        assert len(text) < 20 * longest, bytes(text)
        assert matcher.consume_token(byte)
        text.append(byte)
    return text.decode()


def assert_follows(schema, seeds=3):
    for seed in range(seeds):
        text = written(schema, seed)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def listed(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


A, B = listed("a", a=INTEGER), listed("b", b=TEXT)
NODE = {
    "$defs": {"Node": listed("value", value=INTEGER, next={"$ref": "#/$defs/Node"})},
    "$ref": "#/$defs/Node",
}
CAT = listed("meows", kind={"const": "cat"}, meows=INTEGER)
DOG = listed("barks", kind={"const": "dog"}, barks=INTEGER)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, [{"a": 1}], [{"a": 1, "b": 2}]),
        ({"type": "object"}, [{"b": [2]}], []),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        ({**A, "additionalProperties": True}, [{"a": 1, "b": 2}], []),
        ({**A, "additionalProperties": TEXT}, [{"a": 1, "b": "c"}], [{"a": 1, "b": 2}]),
        ({**A, "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "b": 2}]),
        ({**A, "unevaluatedProperties": True}, [{"a": 1, "b": 2}], []),
        ({**A, "required": ["a", "z"]}, [{"a": 1, "z": [2]}], [{"a": 1}, {"a": 1, "z": 2, "y": 3}]),
        ({**A, "required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
        ({**A, "patternProperties": {"^x": TEXT}}, [{"a": 1, "x1": "y"}], [{"a": 1, "y": "y"}]),
        ({"type": "object", "patternProperties": {"^x": TEXT}}, [{"x": "a"}, {"y": 1}], [{"x": 1}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": "c"}], [{"a": 1}, {"a": 1, "b": "c", "d": 1}]),
        ({**A, "allOf": [B]}, [{"b": "c", "a": 1}], [{"a": 1}]),
        ({"allOf": [listed("o", o=A), listed("o", o=B)]}, [{"o": {"a": 1, "b": "c"}}],
         [{"o": {"a": 1}}, {"o": {"a": 1, "b": "c", "d": 1}}]),
        ({"allOf": [{**A, "additionalProperties": True}, B]}, [{"a": 1, "b": "c", "d": 1}], []),
        ({"allOf": [listed(a=INTEGER), {"additionalProperties": TEXT}]}, [{"b": "c"}], [{"a": 1}]),
        ({"allOf": [{"required": ["a"]}, listed(a=INTEGER)]}, [{"a": 1}], [{}]),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": "c"}], [{"a": 1, "b": "c"}]),
        ({**A, "anyOf": [B, listed("c", c=INTEGER)]}, [{"a": 1, "b": "c"}, {"a": 1, "c": 2}],
         [{"a": 1}, {"a": 1, "b": "c", "c": 2}]),
        ({**listed(a=INTEGER, b=TEXT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         [{"a": 1}, {"b": "c"}, {"a": 1, "b": "c"}], [{}, {"a": 1, "c": 1}]),
        ({"oneOf": [A, B]}, [{"a": 1}, {"b": "c"}], [{"a": 1, "b": "c"}]),
        ({"oneOf": [CAT, DOG]}, [{"kind": "cat", "meows": 1}], [{"meows": 1}, {"kind": "cat"}]),
        ({"oneOf": [TEXT, {"type": "null"}, A]}, ["null", {"a": 1}], [1]),
        ({**listed("kind", kind={"enum": ["cat", "dog"]}), "oneOf": [CAT, DOG]},
         [{"kind": "dog", "barks": 2}], [{"kind": "dog", "meows": 2}]),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a", "title": "It"}, [{"a": 1}], [{"a": 1, "b": 2}]),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a", **B}, [{"a": 1, "b": "c"}], [{"a": 1}]),
        ({"$defs": {"x": {"$anchor": "here", **A}}, "$ref": "#here"}, [{"a": 1}], [{"b": 1}]),
        ({"properties": {"a/b": A, "c": {"$ref": "#/properties/a~1b"}}, "type": "object"},
         [{"a/b": {"a": 1}, "c": {"a": 2}}], [{"c": {"b": 1}}]),
        (NODE, [{"value": 1, "next": {"value": 2}}], [{"value": 1, "next": {"value": 2, "x": 1}}]),
        ({"type": "object", "properties": {"me": {"$ref": "#"}}}, [{"me": {"me": {}}}], [{"x": 1}]),
        ({"allOf": [{"type": "number"}, {"minimum": 10**17}]}, [str(10**17)], ["5"]),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": ["number", "string"]}]}, ["5"], [None]),
        ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3.0, 2, "4"]}]}, ["2", "3"], ["1"]),
        ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]}, ['"ab"'], ['"a"']),
        ({"type": "array", "items": {"anyOf": [A, {"type": "null"}]}}, [[{"a": 1}, None]], [[1]]),
        ({"type": "array", "prefixItems": [A, TEXT], "minItems": 2, "items": False},
         [[{"a": 1}, "b"]], [[{"a": 1, "b": 2}, "b"]]),
        ({"type": "string", "format": "password"}, ['"x"'], ["1"]),
        ({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!a)b"}]}, ["1"], ['"b"']),
        ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": INTEGER},
         [{"y": 1}, {}], [{"z": 1}]),
        ({"type": "object", "propertyNames": {"pattern": "^x"}, "additionalProperties": INTEGER},
         [{"xy": 1}], [{"z": 1}]),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": [1]}], [{"abc": 1}]),
        ({"type": "object", "propertyNames": {"enum": ["x"]}, "unevaluatedProperties": INTEGER},
         [{"x": 1}, {}], [{"x": "y"}, {"z": 1}]),
        ({"$id": "https://example.com/a", "$defs": {"a": A}, "allOf": [{"$ref": "#/$defs/a"}, B]},
         [{"a": 1, "b": "c"}], [{"a": 1, "b": "c", "d": 1}]),
    ],
)  # fmt: skip
def test_what_follows_a_schema(schema, good, bad):
    for value in good:
        assert fits(schema, value), value
    for value in bad:
        assert not fits(schema, value), value
    assert_follows(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": TEXT}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [A, listed(b=TEXT)]}, "oneOf"),
        ({"oneOf": [{"const": [{"a": 1}]}, {"const": [{"a": 1.0}]}]}, "oneOf"),
        ({**A, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf"),
        ({"allOf": [{**A, "unevaluatedProperties": False}, B]}, "unevaluatedProperties"),
        ({"allOf": [A], "propertyNames": {"enum": ["a", "b"]}, "unevaluatedProperties": False},
         "propertyNames"),
        ({"type": "object", "allOf": [{"propertyNames": {"const": "a"}}],
          "unevaluatedProperties": INTEGER}, "propertyNames"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(schema, says):
    with pytest.raises(GrammarRefused, match=says):
        compiled(schema)


def test_a_set_of_branches_that_is_too_large_is_left_to_the_compiler():
    many = [
        {"anyOf": [listed(f"p{i}{j}", **{f"p{i}{j}": INTEGER}) for j in range(9)]} for i in range(9)
    ]
    made = prepared({"allOf": many})
    assert made["allOf"] == many


def test_merging_takes_time_in_proportion_to_the_schema():
    """Each level has branches, and all of them contain the next level."""
    schema = A
    for _ in range(10):
        schema = {**listed(inner=schema), "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}
    assert len(json.dumps(prepared(schema))) < 20_000


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    zip_code: str | None = Field(default=None, pattern=r"^\d{5}$")


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    owner: Address


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Person(BaseModel):
    """Most of what models are made of."""

    name: str = Field(min_length=1, max_length=50, description="full name")
    age: Annotated[int, Field(ge=0, lt=150)]
    score: float = 0.5
    color: Color
    colors: list[Color] = Field(min_length=1, max_length=3)
    home: Address
    work: Address | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pets: list[Cat | Dog] = []
    by_name: dict[str, Address] = {}
    counts: dict[Literal["x", "y"], int] = {}
    born: date
    seen: datetime | None
    ident: UUID
    secret: SecretStr | None = None
    price: Decimal | None = None
    pair: tuple[int, str]
    either: Union[int, str, None] = None  # noqa: UP007
    maybe: Optional[list[int]] = None  # noqa: UP045
    flag: Literal[True, "auto", 3] = "auto"
    anything: dict | None = None
    tree: Tree


PERSON = Person(
    name="Ada", age=36, color=Color.RED, colors=[Color.BLUE], home=Address(street="S"),
    pet=Dog(owner=Address(street="T", zip_code="12345")), pets=[Cat(lives=9)],
    by_name={"x": Address(street="U")}, counts={"y": 1}, born=date(1815, 12, 10), seen=None,
    ident=UUID(int=5), price=Decimal("1.5"), pair=(1, "a"), either="b",
    tree=Tree(name="root", children=[Tree(name="leaf")]),
)  # fmt: skip


def test_a_model_as_pydantic_writes_it():
    schema = Person.model_json_schema()
    value = json.loads(PERSON.model_dump_json())
    value["price"] = 1.5
    assert fits(schema, value)
    assert not fits(schema, {**value, "more": 1})
    for seed in range(3):
        text = written(schema, seed).replace("0000-", "2000-")  # Python has no year 0.
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        Person.model_validate_json(text)


@pytest.mark.parametrize(
    "kind",
    [list[Person], dict[str, Cat], Cat | Dog, Tree, list[Tree] | None, tuple[Cat, ...], Color, int],
    ids=str,
)
def test_other_types_as_pydantic_writes_them(kind):
    adapter = TypeAdapter(kind)
    assert_follows(adapter.json_schema())
    adapter.validate_json(written(adapter.json_schema(), 7).replace("0000-", "2000-"))


NAMES = st.sampled_from(["a", "b", "c", "d"])
SCALARS = st.sampled_from(
    [
        (INTEGER, 1),
        (TEXT, "a"),
        ({"type": "boolean"}, True),
        ({"type": ["number", "null"], "minimum": 0}, None),
        ({"enum": ["a", 1]}, "a"),
        ({"const": "c"}, "c"),
        ({"type": "number", "minimum": 2}, 3),
        ({}, [1]),
        (True, {"q": 1}),
    ]
)


def is_valid(schema, value):
    document = {"allOf": [schema], "$defs": {"shared": SHARED}}
    return jsonschema.Draft202012Validator(document).is_valid(value)


@st.composite
def objects(draw, inner):
    """A schema and a value that follows it: properties, some of them required."""
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = draw(st.lists(NAMES, unique=True, max_size=2))
    value = {name: one for name, (_, one) in properties.items()}
    value |= {name: draw(st.sampled_from([1, "x", {}])) for name in required if name not in value}
    schema = {
        "type": "object",
        "properties": {name: one for name, (one, _) in properties.items()},
        **({"required": required} if required else {}),
        **draw(st.sampled_from([{}, {}, {}, {"additionalProperties": True},
                                {"patternProperties": {"^[x-z]": INTEGER}}, {"minProperties": 0}])),
    }  # fmt: skip
    if draw(st.booleans()) and not schema.get("required"):
        del schema["properties"]
    return schema, value


@st.composite
def combined(draw, inner):
    """Schemas of the same value, in every way that they can be combined; and that value."""
    parts = draw(st.lists(objects(inner), min_size=1, max_size=3))
    value = {}
    for _, one in parts:
        value |= one
    schemas = [schema for schema, _ in parts]
    assume(all(is_valid(schema, value) for schema in schemas))
    other = draw(inner)[0]
    how = draw(st.sampled_from(["allOf", "anyOf", "oneOf", "sibling", "defs", "nested", "list"]))
    if how == "allOf":
        return {"allOf": schemas}, value
    if how == "anyOf":
        return {**schemas[0], "anyOf": [*schemas[1:], other]}, value
    if how == "oneOf":
        return {"oneOf": [*schemas[:1], draw(st.sampled_from([TEXT, {"type": "null"}]))]}, value
    if how == "sibling":
        return {**schemas[0], "allOf": schemas[1:] or [{}]}, value
    if how == "defs":
        return {**schemas[0], "allOf": [{"$ref": "#/$defs/shared"}]}, value
    if how == "list":
        return {"type": "array", "items": {"allOf": schemas}}, [value]
    return {"type": "object", "properties": {"in": {"allOf": schemas}}, "required": ["in"]}, {
        "in": value
    }


SCHEMAS = st.recursive(
    SCALARS, lambda inner: st.one_of(objects(inner), combined(inner)), max_leaves=6
)
SHARED = {
    "type": "object",
    "properties": {"s": {"anyOf": [{"$ref": "#/$defs/shared"}, {"type": "null"}]}},
}


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(SCHEMAS, st.integers(0, 1000))
def test_what_can_be_satisfied_still_can_and_what_is_written_follows(made, seed):
    schema, value = made
    assume(isinstance(schema, dict) and is_valid(schema, value))
    schema = {**schema, "$defs": {"shared": SHARED}}
    try:
        compile_grammar(TRIE, f"start: %json {json.dumps(schema)}")
    except GrammarRefused as refused:
        assume("supported" not in str(refused) and "too complex" not in str(refused))
    text = written(schema, seed)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_a_property_may_be_called_like_a_keyword():
    named = {"type": "object", "properties": {"$ref": TEXT}, "required": ["$ref"]}
    point = {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]}
    schema = listed("a", "c", a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"}, c=named)
    assert fits({**schema, "$defs": {"point": point}}, {"a": {"x": 1}, "c": {"$ref": "y"}})
