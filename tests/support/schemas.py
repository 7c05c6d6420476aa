"""Two hundred different JSON schemas, by name, like those that programs send to models.

Hand-written leaves and documents, and shapes that combine leaves; the same ones every time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def strict(**properties: Schema) -> Schema:
    """An object with exactly these members."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LEAVES: dict[str, Schema] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "true": {"const": True},
    "integer": {"type": "integer"},
    "integer in bounds": {"type": "integer", "minimum": -20, "maximum": 1234},
    "integer above": {"type": "integer", "exclusiveMinimum": 99},
    "integer below": {"type": "integer", "exclusiveMaximum": -7, "minimum": -300},
    "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 1000},
    "sevens": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 500},
    "number": {"type": "number"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "open share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "celsius": {"type": "number", "minimum": -273.15, "maximum": 1000.5},
    "quarters": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99},
    "number or null": {"type": ["number", "null"], "maximum": 50},
    "text": {"type": "string"},
    "short text": {"type": "string", "maxLength": 12},
    "name": {"type": "string", "minLength": 1, "maxLength": 30},
    "long text": {"type": "string", "minLength": 20, "maxLength": 80},
    "three letters": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}(-[a-z])?$"},
    "slug": {"type": "string", "pattern": "^[a-z]{1,12}(-[a-z]{1,9}){0,3}$"},
    "contains a digit": {"type": "string", "pattern": "[0-9]", "maxLength": 20},
    "word": {"type": "string", "pattern": "^\\w{1,16}$"},
    "hex": {"type": "string", "pattern": "^#([0-9a-f]{3}|[0-9a-f]{6})$"},
    "telephone": {"type": "string", "pattern": "^\\+?\\d{2,4}( \\d{2,4}){1,3}$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": {"type": "string", "format": "email"},
    "hostname": {"type": "string", "format": "hostname"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "uri": {"type": "string", "format": "uri"},
    "colour": {"enum": ["red", "green", "blue"]},
    "mixed enum": {"enum": [1, "one", None, True, 1.5, ["a"], {"b": 2}]},
    "strange texts": {"enum": ['a "quoted" one', "back\\slash", "tab\t", "é🙂", "", "/"]},
    "constant text": {"const": "fixed"},
    "constant object": {"const": {"version": 2, "tags": ["x", None]}},
    "text or integer": {"type": ["string", "integer"], "maxLength": 10},
    "anything of": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 5}]},
    "one of": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    "all of": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 300}]},
}

NODE: Schema = {
    "type": "object",
    "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["value"],
    "additionalProperties": False,
}


def linked(depth: int) -> Schema:
    """A linked list of at most `depth` nodes, each with its own definition."""
    nodes: Schema = {f"n{depth}": NODE}
    for level in range(depth - 1, -1, -1):
        following = {"anyOf": [{"$ref": f"#/$defs/n{level + 1}"}, {"type": "null"}]}
        nodes[f"n{level}"] = strict(**NODE["properties"], next=following)
    return {"$defs": nodes, "$ref": "#/$defs/n0"}


def tree(most: int) -> Schema:
    """A tree that refers to itself."""
    children = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": most}
    definition = strict(name={"enum": ["leaf", "branch"]}, children=children)
    return {"$defs": {"tree": definition}, "$ref": "#/$defs/tree"}


DOCUMENTS: dict[str, Schema] = {
    "person": strict(
        name=LEAVES["name"], age={"type": "integer", "minimum": 0, "maximum": 130},
        email=LEAVES["email"], married=LEAVES["boolean"],
    ),
    "weather call": strict(
        city={"type": "string", "maxLength": 40}, unit={"enum": ["celsius", "fahrenheit"]},
        days={"type": "integer", "minimum": 1, "maximum": 14},
    ),
    "review": {
        "type": "object",
        "properties": {
            "stars": {"type": "integer", "minimum": 1, "maximum": 5},
            "verdict": {"enum": ["buy", "wait", "avoid"]},
            "reasons": {"type": "array", "items": LEAVES["short text"], "maxItems": 3},
            "comment": {"type": "string", "maxLength": 60},
        },
        "required": ["stars", "verdict"],
        "additionalProperties": False,
    },
    "invoice": {
        "$defs": {
            "money": strict(amount=LEAVES["cents"], currency={"enum": ["EUR", "USD"]}),
            "line": strict(item=LEAVES["name"], price={"$ref": "#/$defs/money"}),
        },
        **strict(
            number={"type": "string", "pattern": "^R-\\d{4}$"}, issued=LEAVES["date"],
            total={"$ref": "#/$defs/money"},
            lines={
                "type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1, "maxItems": 3,
            },
        ),
    },
    "shapes by kind": {
        "type": "array", "minItems": 1, "maxItems": 3,
        "items": {
            "oneOf": [
                strict(kind={"const": "circle"}, radius=LEAVES["quarters"]),
                strict(kind={"const": "square"}, side=LEAVES["even"]),
                strict(kind={"const": "point"}),
            ]
        },
    },
    "sentiment": strict(label={"enum": ["good", "bad", "neutral"]}, score=LEAVES["share"]),
    "settings": {
        "type": "object",
        "properties": {"theme": {"enum": ["dark", "light"]}, "size": LEAVES["even"]},
        "patternProperties": {"^x-[a-z]{1,8}$": {"type": "boolean"}},
        "additionalProperties": False, "required": ["theme"],
    },
    "two merged": {
        "allOf": [
            {"type": "object", "properties": {"a": LEAVES["sevens"]}, "required": ["a"]},
            {"type": "object", "properties": {"b": LEAVES["code"]}, "required": ["b"]},
        ],
        "additionalProperties": False,
    } | {"properties": {"a": {}, "b": {}}},
    "latitude and longitude": {
        "type": "array", "items": False, "minItems": 2,
        "prefixItems": [
            {"type": "number", "minimum": -90, "maximum": 90},
            {"type": "number", "minimum": -180, "maximum": 180},
        ],
    },
    "row with a rest": {
        "type": "array", "prefixItems": [LEAVES["date"], LEAVES["integer in bounds"]],
        "items": {"type": "null"}, "minItems": 2, "maxItems": 4,
    },
    "any object": {"type": "object"},
    "empty object": {"type": "object", "additionalProperties": False},
    "counts by word": {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "annotated": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Annotated",
        "description": "What is only told.", "default": {"a": 1}, "examples": [{"a": 2}],
        **strict(a={"type": "integer", "title": "A", "minimum": 1, "maximum": 3}),
    },
    "definitions of old": {
        "definitions": {"id": {"type": "string", "pattern": "^[a-f0-9]{8}$"}},
        "type": "array", "items": {"$ref": "#/definitions/id"}, "minItems": 2, "maxItems": 2,
    },
    "matrix": {
        "type": "array", "minItems": 2, "maxItems": 2,
        "items": {"type": "array", "items": LEAVES["even"], "minItems": 2, "maxItems": 3},
    },
    "deep": strict(a=strict(b=strict(c=strict(d=strict(e=strict(f=LEAVES["sevens"])))))),
    "many members": strict(**{f"field{n:02}": LEAVES["boolean"] for n in range(25)}),
    "long enum": {"enum": [f"country {n:03}" for n in range(300)]},
    "linked list": linked(4),
    "longer linked list": linked(8),
    "tree of two": tree(2),
    "tree of one": tree(1),
}  # fmt: skip


def _optional(first: Schema, second: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"first": first, "second": second},
        "additionalProperties": False,
    }


def _referred(first: Schema, second: Schema) -> Schema:
    pair = strict(left={"$ref": "#/$defs/one"}, right={"$ref": "#/$defs/other"})
    return {"$defs": {"one": first, "other": second}, **pair}


SHAPES: dict[str, Callable[[Schema, Schema], Schema]] = {
    "object of": lambda a, b: strict(first=a, second=b),
    "optional": _optional,
    "list of": lambda a, b: {
        "type": "array", "items": {"anyOf": [a, b]}, "minItems": 1, "maxItems": 3,
    },
    "tuple of": lambda a, b: {
        "type": "array", "prefixItems": [a, b, a], "minItems": 2, "items": False,
    },
    "either": lambda a, b: {"anyOf": [strict(a=a), strict(b=b)]},
    "kinds": lambda a, b: {
        "oneOf": [strict(kind={"const": "a"}, data=a), strict(kind={"const": "b"}, data=b)]
    },
    "referred": _referred,
    "nested": lambda a, b: strict(outer=strict(inner=strict(value=a)), other=strict(value=b)),
    "map of": lambda a, b: {
        "type": "object", "properties": {"known": a}, "required": ["known"],
        "patternProperties": {"^[a-c]_[a-z]{2}$": b}, "additionalProperties": False,
        "maxProperties": 3,
    },
    "or null": lambda a, b: strict(
        one={"anyOf": [a, {"type": "null"}]}, list={"type": "array", "items": b, "maxItems": 2}
    ),
}  # fmt: skip


def two_hundred() -> dict[str, Schema]:
    """The schemas by name."""
    made = {**LEAVES, **DOCUMENTS}
    seen = {json.dumps(schema) for schema in made.values()}
    draw = random.Random(4)
    leaves = list(LEAVES)
    while len(made) < 200:
        shape = list(SHAPES)[len(made) % len(SHAPES)]
        first, second = draw.sample(leaves, 2)
        schema = SHAPES[shape](LEAVES[first], LEAVES[second])
        if json.dumps(schema) not in seen:
            seen.add(json.dumps(schema))
            made[f"{shape}: {first}, {second}"] = schema
    return made
