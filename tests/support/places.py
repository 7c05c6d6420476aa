"""Every place of a request body where a parameter can be, with the fields that it requires around
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hearth.app.server.parameters import Parameter, Table, Tagged
from hearth.app.server.schema import AnyOf, ListOf, Schema

_HERE = "<here>"


@dataclass(frozen=True)
class Place:
    """One parameter.

    Attributes:
        name: its name in an error.
        tells: it selects the kind of the object around it.
        drops: objects of other kinds are left out.
    """

    name: str
    parameter: Parameter
    tells: bool
    drops: bool
    _around: Any

    @property
    def parent(self) -> str:
        """The object around it; empty: the body."""
        return self.name.rpartition(".")[0]

    def body(self, written: str) -> bytes:
        """The smallest body that has the JSON `written` at this place."""
        return json.dumps(self._around).replace(json.dumps(_HERE), written).encode()


def places(table: Table, levels: int, key: str = "", *, drops: bool = False) -> Iterator[Place]:
    """The parameters of `table`, and those of the tables in it, `levels` deep.

    Args:
        key: the parameter that distinguishes `table` from others.
        drops: an object of another kind is left out.
    """
    needed = {one.name: example(one.schema) for one in table if one.required}
    needed |= {"model": "tiny"} if "model" in needed else {}
    for parameter in table:
        around = {**needed, parameter.name: _HERE}
        tells = parameter.name == key
        yield Place(parameter.name, parameter, tells, tells and drops, around)
        if parameter.schema is None or not levels or parameter.treatment != "honoured":
            continue
        for path, wrap, inner, inner_key, inner_drops in _tables(parameter.schema):
            for place in places(inner, levels - 1, inner_key, drops=inner_drops):
                value = wrap(place._around)
                name = f"{parameter.name}{path}.{place.name}"
                around = {**needed, parameter.name: value}
                yield Place(name, place.parameter, place.tells, place.drops, around)


def _tables(schema: Schema) -> Iterator[tuple[str, Any, Table, str, bool]]:
    """(path, function that puts a table there, table, the field that distinguishes it from others,
    whether others are left out) for every table that a value of `schema` may be, or be a list of.
    """
    if isinstance(schema, Table):
        yield "", lambda value: value, schema, "", False
    elif isinstance(schema, Tagged):
        for table in schema.kinds.values():
            yield "", lambda value: value, table, schema.key, schema.drops
    elif isinstance(schema, ListOf):
        for path, wrap, table, key, drops in _tables(schema.of):
            yield f"[0]{path}", lambda value, wrap=wrap: [wrap(value)], table, key, drops
    elif isinstance(schema, AnyOf):
        for form in schema.forms:
            yield from _tables(form)


def example(schema: Schema | None) -> Any:
    """The smallest value that `schema` accepts."""
    assert schema is not None
    return _example(schema.json())


def _example(described: dict[str, Any]) -> Any:
    for several in ("anyOf", "oneOf"):
        if several in described:
            return _example(described[several][0])
    if "enum" in described:
        return described["enum"][0]
    if described["type"] == "object":
        fields = described.get("properties", {})
        return {name: _example(fields[name]) for name in described.get("required", ())}
    if described["type"] == "array":
        return [_example(described["items"])] * described.get("minItems", 0)
    if described["type"] == "string":
        return "{}" if described.get("format") == "json-object" else "a"
    return described["minimum"]
