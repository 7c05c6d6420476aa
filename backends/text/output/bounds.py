"""Ends where a JSON schema leaves open how long a number or a formatted text may become.

Weak models that have begun `0.3333` or `1.1.1.` go on for ever. What is written under these bounds
still follows the schema as it was given; plain texts, lists and objects stay as open as they are.
"""

from __future__ import annotations

from typing import Any, Final

_SAFE_INTEGER: Final = 2**53 - 1
"""Beyond it programs do not agree on what an integer is (RFC 8259, section 6)."""
_STEP: Final = 1e-9
"""Numbers get nine decimals at most."""
_SMALLEST_BOUND: Final = 1e-6
"""Bounds nearer to zero than this say that the numbers meant are too small for `_STEP`."""
_LONGEST: Final = {
    "date-time": 35,
    "time": 24,
    "duration": 32,
    "email": 254,  # RFC 5321
    "hostname": 253,  # RFC 1035
    "uri": 256,
}
"""Characters of texts whose format has no end; the others end by themselves."""

_SCHEMA_KEYS: Final = frozenset(("items", "additionalProperties"))
_LIST_KEYS: Final = frozenset(("anyOf", "allOf", "prefixItems"))
_MAP_KEYS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))


def bounded(schema: Any) -> Any:
    """`schema` with bounds added where it has none; every text that follows the result follows
    `schema`.

    Args:
        schema: at most 32 levels deep; left unchanged.
    """
    if not isinstance(schema, dict):
        return schema
    made = {key: _bounded_member(key, value) for key, value in schema.items()}
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    if "enum" in schema or "const" in schema:
        return made
    if "number" in types or "integer" in types:
        _bound_number(made, decimals="number" in types)
    longest = _LONGEST.get(str(schema.get("format")))
    if "string" in types and longest and not {"minLength", "maxLength", "pattern"} & set(schema):
        made["maxLength"] = longest
    return made


def _bounded_member(key: str, value: Any) -> Any:
    if key in _SCHEMA_KEYS:
        return bounded(value)
    if key in _LIST_KEYS and isinstance(value, list):
        return [bounded(one) for one in value]
    if key == "oneOf" and isinstance(value, list) and _is_discriminated(value):
        return [bounded(one) for one in value]
    if key in _MAP_KEYS and isinstance(value, dict):
        return {name: bounded(one) for name, one in value.items()}
    return value


def _is_discriminated(branches: list[Any]) -> bool:
    """Is one required member a different constant in every branch? Then the branches exclude each
    other. Otherwise bounds could make them seem to, where what follows one follows another as well.
    """
    constants = [_constants(branch) for branch in branches]
    shared = set(constants[0]).intersection(*constants) if constants else set()
    return any(len({one[name] for one in constants}) == len(constants) for name in shared)


def _constants(branch: Any) -> dict[str, str]:
    """The required members of an object that are constant texts."""
    if not isinstance(branch, dict) or branch.get("type") != "object":
        return {}
    properties, required = branch.get("properties"), branch.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {
        name: one["const"]
        for name, one in properties.items()
        if name in required and isinstance(one, dict) and isinstance(one.get("const"), str)
    }


def _bound_number(schema: dict[str, Any], *, decimals: bool) -> None:
    """Add what is missing of `minimum`, `maximum` and a smallest step."""
    given = [
        schema[key]
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        if isinstance(schema.get(key), int | float)
    ]
    if any(abs(one) > _SAFE_INTEGER for one in given):
        return
    if not {"minimum", "exclusiveMinimum"} & set(schema):
        schema["minimum"] = -_SAFE_INTEGER
    if not {"maximum", "exclusiveMaximum"} & set(schema):
        schema["maximum"] = _SAFE_INTEGER
    is_tiny = any(0 < abs(one) < _SMALLEST_BOUND for one in given)
    if decimals and "multipleOf" not in schema and not is_tiny:
        schema["multipleOf"] = _STEP
