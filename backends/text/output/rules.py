"""Constraints on an answer, as the body of a Lark rule in llguidance's dialect.

Schemas and patterns come from requests, so their size is checked here before they are compiled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from hearth.backends.contract.checks import check_text, depth_of, json_text
from hearth.backends.contract.requests import Constraint
from hearth.backends.errors import InvalidParameter, LimitExceeded
from hearth.backends.text.output.json_schema import prepared

LARGEST_SCHEMA_BYTES: Final = 64 * 1024
DEEPEST_SCHEMA: Final = 32
MOST_SCHEMA_NODES: Final = 4_000
LONGEST_PATTERN_BYTES: Final = 512
MOST_CHOICES: Final = 256
LARGEST_CHOICES_BYTES: Final = 16 * 1024
LARGEST_GRAMMAR_BYTES: Final = 64 * 1024
GBNF: Final = "%gbnf"
"""Marks a rule that is a llama.cpp grammar (GBNF) in a JSON string; the helper converts it."""

_OPTIONS_KEY: Final = "x-guidance"
_JSON_OPTIONS: Final[dict[str, Any]] = {
    # At most one space after ":" and ",", and none elsewhere: if white space is unbounded, weak
    # models write more and more of it and never finish.
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
}
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_DATA: Final = frozenset(("default", "const", "enum", "examples"))
"""Keywords whose values are arbitrary JSON, not schemas."""
_BY_NAME: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
)
"""Keywords whose values are objects of schemas under arbitrary names."""


def content_rule(constraint: Constraint, param: str) -> str:
    """The body of a rule for an answer that follows `constraint`.

    Args:
        param: the name of the constraint in the request, for errors.

    Raises:
        InvalidParameter: the constraint is malformed or exceeds a limit of this module.
    """
    if constraint.kind == "json":
        return json_rule(_ANY_OBJECT)
    if constraint.kind == "regex":
        return _regex_rule(constraint.source, param)
    if constraint.kind == "grammar":
        return _grammar_rule(constraint.source, param)
    value = _parsed(constraint.source, param)
    if constraint.kind == "choice":
        return _choice_rule(value, param)
    check_schema(value, param)
    return json_rule({} if value is True else value)


def json_rule(schema: dict[str, Any]) -> str:
    """The body of a rule for a JSON text that follows `schema`, which has passed `check_schema`."""
    return "%json " + json.dumps({**prepared(schema), _OPTIONS_KEY: _JSON_OPTIONS})


def check_schema(schema: Any, param: str) -> None:
    """Check a JSON schema and its size; unsupported keywords are found only when it is compiled.

    Args:
        schema: parsed JSON: a dict or a boolean.
        param: the name of the schema in the request, for errors.

    Raises:
        InvalidParameter: it is not a schema; or exceeds 64 KiB, 32 levels, 4,000 values, or 512
            bytes per pattern; or refers to another document; or has a value unknown to JSON.
    """
    if schema is False:
        raise InvalidParameter(
            param, f"{param} is the schema `false`, which nothing fits.", "Say what may be written."
        )
    if not isinstance(schema, dict | bool):
        raise InvalidParameter(
            param,
            f"{param} must be a JSON schema, which is an object; this is {_kind(schema)}.",
            'For example {"type": "object", "properties": {"name": {"type": "string"}}}.',
        )
    measure_schema(schema, param)
    for nodes, (key, value) in enumerate(_walk(schema), start=1):
        if nodes > MOST_SCHEMA_NODES:
            raise _too_much(param, f"has more than {MOST_SCHEMA_NODES:,} values")
        _check_keyword(key, value, param)


def measure_schema(schema: Any, param: str) -> None:
    """Check only the size of a JSON schema, which is enough for one that is not compiled.

    Raises:
        InvalidParameter: it exceeds 64 KiB or 32 levels; or has a value unknown to JSON.
    """
    if depth_of(schema, DEEPEST_SCHEMA + 1) > DEEPEST_SCHEMA:
        raise _too_much(param, f"is nested more than {DEEPEST_SCHEMA} levels deep")
    text = json_text(param, schema)
    _check_bytes(len(check_text(param, text)), LARGEST_SCHEMA_BYTES, param)


def _check_keyword(key: str, value: Any, param: str) -> None:
    """Check a single member of a schema."""
    if key == _OPTIONS_KEY:
        raise InvalidParameter(
            param,
            f"{param} contains {_OPTIONS_KEY}, which sets options of the grammar engine.",
            f"Leave {_OPTIONS_KEY} out: Hearth sets these itself.",
        )
    if key == "$ref" and isinstance(value, str) and not value.startswith("#"):
        raise InvalidParameter(
            param,
            f"{param} refers to another document: $ref {value[:80]!r}. Nothing is fetched.",
            'Put the definition under "$defs" and refer to it as "#/$defs/NAME".',
        )
    if key == "pattern" and isinstance(value, str):
        _check_pattern(value, param)
    if key == "patternProperties" and isinstance(value, dict):
        for pattern in value:
            _check_pattern(pattern, param)


def _walk(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every value in `schema` with its keyword, which is "" in arrays, in data, and for schemas
    under arbitrary names. A `$ref` into data is left to the grammar helper, which fetches nothing
    either.
    """
    pending: list[tuple[str, Any, bool]] = [("", schema, False)]
    while pending:
        key, value, is_data = pending.pop()
        yield key, value
        is_data |= key in _DATA
        if isinstance(value, dict):
            named = is_data or key in _BY_NAME
            pending += [("" if named else str(k), inner, is_data) for k, inner in value.items()]
        elif isinstance(value, list | tuple):
            pending += [("", inner, is_data) for inner in value]


def _regex_rule(pattern: str, param: str) -> str:
    """A rule for `pattern`; `\\w`, `\\d` and `\\s` match Unicode characters, as in Python."""
    if not pattern:
        raise InvalidParameter(
            param, f"{param} is an empty pattern.", r"Give a pattern such as \d{4}-\d{2}-\d{2}."
        )
    _check_pattern(pattern, param)
    body = []
    escaped = False
    for letter in pattern:
        if letter == "/" and not escaped:
            body.append("\\")
        # A literal must be on one line: a line break is written as an escape, or completes one.
        body.append({"\n": "n" if escaped else r"\n"}.get(letter, letter))
        escaped = letter == "\\" and not escaped
    if escaped:
        raise InvalidParameter(
            param, f"{param} ends in a lone backslash.", r"Write \\ for a backslash."
        )
    return f"/{''.join(body)}/"


def _grammar_rule(source: str, param: str) -> str:
    _check_bytes(len(check_text(param, source)), LARGEST_GRAMMAR_BYTES, param)
    if not source.strip():
        raise InvalidParameter(
            param, f"{param} is an empty grammar.", 'For example root ::= "yes" | "no".'
        )
    return f"{GBNF} {json.dumps(source)}"


def _check_pattern(pattern: str, param: str) -> None:
    size = len(check_text(param, pattern))
    if size > LONGEST_PATTERN_BYTES:
        raise LimitExceeded(
            param,
            f"A pattern in {param} takes {size:,} bytes; {LONGEST_PATTERN_BYTES} are allowed.",
            "Write it shorter, or check this part after the answer has come.",
        )


def _choice_rule(choices: Any, param: str) -> str:
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise InvalidParameter(
            param, f"{param} must be a list of texts.", 'For example ["yes", "no"].'
        )
    if not 1 <= len(choices) <= MOST_CHOICES:
        raise InvalidParameter(
            param,
            f"{param} has {len(choices):,} choices; from 1 to {MOST_CHOICES} are allowed.",
            "Offer fewer choices." if choices else "Offer at least one choice.",
        )
    if not all(choices):
        raise InvalidParameter(param, f"{param} has an empty choice.", "Leave it out.")
    size = sum(len(check_text(param, choice)) for choice in choices)
    _check_bytes(size, LARGEST_CHOICES_BYTES, param)
    return f"( {' | '.join(json.dumps(choice) for choice in choices)} )"


def _parsed(source: str, param: str) -> Any:
    """The JSON value written in `source`."""
    if len(source) > LARGEST_SCHEMA_BYTES:
        raise _too_much(
            param, f"has {len(source):,} characters; {LARGEST_SCHEMA_BYTES:,} are allowed"
        )
    try:
        return json.loads(source)
    except RecursionError as error:
        raise _too_much(param, f"is nested more than {DEEPEST_SCHEMA} levels deep") from error
    except ValueError as error:
        raise InvalidParameter(
            param, f"{param} is not JSON: {error}.", "Send it as one JSON text."
        ) from error


def _check_bytes(size: int, most: int, param: str) -> None:
    if size > most:
        raise _too_much(param, f"takes {size:,} bytes; {most:,} are allowed")


def _too_much(param: str, what: str) -> LimitExceeded:
    return LimitExceeded(
        param, f"{param} {what}.", "Simplify it, or check part of it after the answer has come."
    )


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    names = {list: "a list", str: "a text", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)
