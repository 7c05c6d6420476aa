"""Schemas of JSON values.

They both validate requests and generate `/openapi.json`, so that the documentation matches what is
accepted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.text.cut_json import read_json

Json = dict[str, Any]
DROPPED: Final = object()
"""Result of reading an array item that is left out."""
MOST_NOTICES: Final = 16
LONGEST_NAME: Final = 64
_INDEX: Final = re.compile(r"\[\d+\]")
_SHOWN_CHARS: Final = 60
_WORDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


@dataclass(slots=True)
class Reading:
    """The state of reading one body: ignored fields, and aliases that were used.

    Attributes:
        strict: whether to refuse fields that would be ignored (`hearth serve --strict`).
        ignored: paths of ignored fields, without array indices, in the order of the body; at most
            `MOST_NOTICES` + 1.
        sent_as: by the table's name of a top-level field, the alias under which it was sent.
        kept: by the path of an array from which items were left out, the indices of the others.
        has_surrogates: whether lone surrogates in strings of the body were replaced.
    """

    strict: bool = False
    ignored: dict[str, None] = field(default_factory=dict)
    sent_as: dict[str, str] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    has_surrogates: bool = False

    def ignore(self, place: str) -> None:
        """Record that the field at `place` has no effect.

        Raises:
            UnsupportedParameter: the server is strict.
        """
        if self.strict:
            raise UnsupportedParameter(
                place,
                f"{place[:100]} has no effect, and this server refuses such fields (--strict).",
                "Leave it out, or start the server without --strict (setting strict_requests).",
            )
        if len(self.ignored) <= MOST_NOTICES:
            self.ignored[_INDEX.sub("[]", place)[:LONGEST_NAME]] = None

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about replaced surrogates and each ignored field; at most `MOST_NOTICES`."""
        sentences = ("Lone surrogates were replaced by U+FFFD.",) * self.has_surrogates
        sentences += tuple(f"{name} has no effect." for name in self.ignored)
        if len(sentences) > MOST_NOTICES:
            return (*sentences[: MOST_NOTICES - 1], "Further parameters have no effect.")
        return sentences


class Schema:
    """The values accepted at one place of a body; without overrides, any JSON object."""

    types: ClassVar[tuple[type, ...]] = (dict,)
    """The types of accepted values; `bool` does not count as a number."""

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        """`value`, validated and normalized; ignored fields are recorded in `reading`.

        Raises:
            InvalidParameter: `value` has a wrong type or is out of range; `param` is `path` or a
                path below it.
            UnsupportedParameter: `value` is known, but cannot be honoured.
        """
        if type(value) not in self.types:
            raise self.wrong(value, path)
        return self.checked(value, path, reading)

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        """The result of `read` for a `value` that has one of the `types`."""
        return value

    def fits(self, value: Any) -> bool:
        """Whether `value` has the type of this schema, valid or not."""
        return type(value) in self.types

    def json(self) -> Json:
        """The JSON schema (draft 2020-12, which OpenAPI 3.1 and later use)."""
        return {"type": "object"}

    @property
    def words(self) -> str:
        """A description of the accepted values for people, such as "a number in [0, 2]"."""
        return _WORDS[self.types[0]]

    def wrong(self, value: Any, path: str) -> InvalidParameter:
        """The error for a `value` of another type or range."""
        return InvalidParameter(path, f"{path} must be {self.words}, not {shown(value)}.")


def shown(value: Any) -> str:
    """`value` in a message: at most `_SHOWN_CHARS` characters, and only the type of containers."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        text = str(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
        return text[:_SHOWN_CHARS]
    if isinstance(value, str):
        return "an empty string" if not value else f'"{value[:_SHOWN_CHARS]}"'
    return _WORDS[type(value)]


@dataclass(frozen=True, slots=True)
class Number(Schema):
    """A number in a range, without a fraction if `whole` is set."""

    types = (int, float)
    low: float
    high: float
    whole: bool = False
    above_low: bool = False
    """Whether `low` itself is outside of the range."""

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        if self.whole and isinstance(value, float) and value.is_integer():
            # 1.0 is an integer in JSON schema; some languages write all integers like this.
            value = int(value)
        below = value <= self.low if self.above_low else value < self.low
        if below or not value <= self.high or (self.whole and isinstance(value, float)):
            raise self.wrong(value, path)
        return value

    def takes_all(self, values: list[Any]) -> bool:
        """Whether all `values` are integers in the range.

        This is faster than reading each: a prompt may have hundreds of thousands of token ids.
        """
        whole = not self.above_low and set(map(type, values)) == {int}
        return bool(whole and self.low <= min(values) and max(values) <= self.high)

    def json(self) -> Json:
        lowest = "exclusiveMinimum" if self.above_low else "minimum"
        limits = {lowest: _plain(self.low), "maximum": _plain(self.high)}
        return {"type": "integer" if self.whole else "number", **limits}

    @property
    def words(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} in {'(' if self.above_low else '['}{_plain(self.low)}, {_plain(self.high)}]"


@dataclass(frozen=True, slots=True)
class Flag(Schema):
    """true or false."""

    types = (bool,)

    def json(self) -> Json:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text(Schema):
    """A string; lengths are in characters, as in JSON schema."""

    types = (str,)
    shortest: int = 0
    longest: int | None = None
    pattern: str = ""
    """A regular expression that matches the whole string; it must run in linear time."""
    form: str = ""
    """JSON schema's "format"; for the documentation only."""

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        if len(value) < self.shortest or (self.longest is not None and len(value) > self.longest):
            raise InvalidParameter(
                path, f"{path} has {len(value):,} characters; it must be {self.words}."
            )
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise InvalidParameter(
                path, f"{path} is {shown(value)}, which does not match {self.pattern}."
            )
        return value

    def json(self) -> Json:
        limits = {
            "minLength": self.shortest or None,
            "maxLength": self.longest,
            "pattern": self.pattern or None,
            "format": self.form or None,
        }
        return {"type": "string", **_set(limits)}

    @property
    def words(self) -> str:
        if self.longest is None:
            return "a non-empty string" if self.shortest else "a string"
        fits = f" that matches {self.pattern}" * bool(self.pattern)
        if not self.shortest:
            return f"a string of at most {self.longest:,} characters{fits}"
        return f"a string of {self.shortest} to {self.longest:,} characters{fits}"


@dataclass(frozen=True, slots=True)
class JsonText(Schema):
    """A string with a JSON object.

    Attributes:
        whole: whether the object must be complete; it is then returned in place of the string. If
            not, the string is like the arguments of a tool call: empty for `{}`, and the end is
            missing if the call was cut off.
    """

    types = (str,)
    whole: bool = False

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        text = value if self.whole or value.strip() else "{}"
        try:
            content = json.loads(text) if self.whole else read_json(text)
        except (ValueError, RecursionError) as error:
            raise InvalidParameter(
                path, f"{path} is not valid JSON: {error}.", "Send a JSON object, such as {}."
            ) from error
        if not isinstance(content, dict):
            raise InvalidParameter(
                path,
                f"{path} must be {self.words}, not {shown(content)}.",
                "Send a JSON object, such as {}.",
            )
        return content if self.whole else value

    def json(self) -> Json:
        return {"type": "string", "format": "json-object"}

    @property
    def words(self) -> str:
        words = "a string that contains a JSON object"
        return words if self.whole else f"{words}, whose end may be missing"


@dataclass(frozen=True, slots=True)
class Sentinel(Schema):
    """A number, or -1, which means "no limit" or "off" in other servers.

    Attributes:
        meaning: the value that replaces -1.
    """

    of: Number
    meaning: Any = None

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if value == -1 and not isinstance(value, bool):
            return self.meaning
        return self.of.read(value, path, reading)

    def fits(self, value: Any) -> bool:
        return self.of.fits(value)

    def json(self) -> Json:
        return {"anyOf": [self.of.json(), {"const": -1}]}

    @property
    def words(self) -> str:
        return f"{self.of.words}, or -1"


@dataclass(frozen=True, slots=True)
class OneOf(Schema):
    """One of several strings or numbers."""

    values: tuple[Any, ...]

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not any(type(known) is type(value) and known == value for known in self.values):
            raise self.wrong(value, path)
        return value

    def fits(self, value: Any) -> bool:
        return any(isinstance(value, type(known)) for known in self.values)

    def json(self) -> Json:
        return {"enum": list(self.values)}

    @property
    def words(self) -> str:
        return " or ".join(shown(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class ListOf(Schema):
    """An array."""

    types = (list,)
    of: Schema
    most: int
    least: int = 0

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        if not self.least <= len(value) <= self.most:
            raise InvalidParameter(
                path, f"{path} has {len(value):,} items; it must be {self.words}."
            )
        if isinstance(self.of, Number) and self.of.takes_all(value):
            return value
        items = [self.of.read(item, f"{path}[{at}]", reading) for at, item in enumerate(value)]
        if DROPPED not in items:
            return items
        reading.kept[path] = [at for at, item in enumerate(items) if item is not DROPPED]
        return [item for item in items if item is not DROPPED]

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self.of.fits(value[0]))

    def json(self) -> Json:
        limits = {"maxItems": self.most, "minItems": self.least or None}
        return {"type": "array", "items": self.of.json(), **_set(limits)}

    @property
    def words(self) -> str:
        return f"an array of {self.least} to {self.most:,} items"


@dataclass(frozen=True, slots=True)
class MapOf(Schema):
    """An object with arbitrary names.

    Attributes:
        names: a regular expression that must match every name as a whole.
    """

    of: Schema
    most: int
    names: str = ""

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        if len(value) > self.most:
            raise InvalidParameter(
                path, f"{path} has {len(value):,} items; it must be {self.words}."
            )
        for name in value:
            if self.names and not re.fullmatch(self.names, name):
                raise InvalidParameter(
                    path, f"{path} has the name {shown(name)}, which does not match {self.names}."
                )
        return {
            name: self.of.read(item, f"{path}.{name[:40]}", reading) for name, item in value.items()
        }

    def json(self) -> Json:
        names = {"pattern": self.names} if self.names else None
        limits = {"maxProperties": self.most, "propertyNames": names}
        return {"type": "object", "additionalProperties": self.of.json(), **_set(limits)}

    @property
    def words(self) -> str:
        return f"an object of at most {self.most:,} members"


@dataclass(frozen=True, slots=True)
class AnyOf(Schema):
    """One of several forms, selected by the type of the value or of an array's first item."""

    forms: tuple[Schema, ...]

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        for form in self.forms:
            if form.fits(value):
                return form.read(value, path, reading)
        raise self.wrong(value, path)

    def fits(self, value: Any) -> bool:
        return any(form.fits(value) for form in self.forms)

    def json(self) -> Json:
        return {"anyOf": [form.json() for form in self.forms]}

    @property
    def words(self) -> str:
        return " or ".join(form.words for form in self.forms)


@dataclass(frozen=True, slots=True)
class AnyObject(Schema):
    """A JSON object that is passed on unchanged, such as a JSON schema."""


def _set(limits: Json) -> Json:
    """The `limits` that are not None."""
    return {name: limit for name, limit in limits.items() if limit is not None}


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number
