"""Ends where a JSON schema leaves open how long a number or a formatted string may become.

Weak models that have begun `0.3333` or `1.1.1.` go on until the limit. What is written under these
bounds still follows the schema as it was given; strings without a format and arrays stay as open as
they are.
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
"""Characters of strings whose format has no end; the others end by themselves."""
FORMATS: Final = frozenset((*_LONGEST, "date", "uuid", "ipv4", "ipv6"))
"""Formats that llguidance 1.9 can follow. Others only describe, as JSON Schema has it."""


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `schema` for numbers and strings, with bounds added where it has none. Those
    are all that apply to the value: otherwise a bound might contradict another one.
    """
    made = dict(schema)
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
