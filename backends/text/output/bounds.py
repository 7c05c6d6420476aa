"""Adds bounds where a JSON schema does not limit the length of a number or a formatted string.

Weak models that have begun `0.3333` or `1.1.1.` go on until the token limit. Output within these
bounds still follows the original schema. Strings without a format and arrays get no bounds.
"""

from __future__ import annotations

from typing import Any, Final

_SAFE_INTEGER: Final = 2**53 - 1
"""Beyond it programs may disagree on the value of an integer (RFC 8259, section 6)."""
_STEP: Final = 1e-9
"""Numbers get at most nine decimals."""
_SMALLEST_BOUND: Final = 1e-6
"""A given bound nearer to zero than this means that the numbers are too small for `_STEP`."""
_LONGEST: Final = {
    "date-time": 35,
    "time": 24,
    "duration": 32,
    "email": 254,  # RFC 5321
    "hostname": 253,  # RFC 1035
    "uri": 256,
}
"""Most characters of strings in the formats that do not limit the length themselves."""
FORMATS: Final = frozenset((*_LONGEST, "date", "uuid", "ipv4", "ipv6"))
"""Formats that llguidance 1.9 enforces. Others are only annotations, as in JSON Schema."""


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with bounds added for numbers and strings where it has none. No other schema may
    apply to the same value, because an added bound might contradict it.
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
    """Add `minimum`, `maximum` and a smallest step where they are missing."""
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
