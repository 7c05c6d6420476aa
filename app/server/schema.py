"""Schemas of JSON values, which both validate requests and generate `/openapi.json`, so that the
documentation is what is accepted.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from hearth.app.server.reading import Reading
from hearth.backends.engine.fields import Field
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.cut_json import read_json

Json = dict[str, Any]
DROPPED: Final = object()
"""Result of reading an array item that is left out."""
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


class Schema(ABC):
    """The values that are accepted at one place of a body."""

    @abstractmethod
    def read(self, value: Any, path: str, reading: Reading) -> Any:
        """`value`, validated and normalized; ignored fields are recorded in `reading`.

        Raises:
            InvalidParameter: it has a wrong type or is out of range; `param` is `path` or a path
                below it.
            UnsupportedParameter: it is known, but cannot be honoured.
        """

    def fits(self, value: Any) -> bool:
        """Whether `value` has the type of this schema, valid or not. An object by default."""
        return isinstance(value, dict)

    @abstractmethod
    def json(self) -> Json:
        """The JSON schema (draft 2020-12, which OpenAPI 3.1 and later use)."""

    @property
    @abstractmethod
    def words(self) -> str:
        """A description of the accepted values for people, such as "a number in [0, 2]"."""

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
    """A number in a range; `whole` ones have no fraction."""

    low: float
    high: float
    whole: bool = False
    above_low: bool = False
    """`low` itself is not in the range."""

    @staticmethod
    def of(field: Field) -> Number:
        """The number that `field` declares for all front ends."""
        return Number(field.minimum, field.maximum, field.kind == "int", field.above_minimum)

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(value, path)
        if self.whole and isinstance(value, float):
            # 1.0 is an integer in JSON schema; some languages write all numbers like this.
            if not math.isfinite(value) or value != int(value):
                raise self.wrong(value, path)
            value = int(value)
        below = value <= self.low if self.above_low else value < self.low
        if below or not value <= self.high:
            raise self.wrong(value, path)
        return value

    def takes_all(self, values: list[Any]) -> bool:
        """Whether all `values` are integers in the range. Faster than reading each: a prompt may
        have hundreds of thousands of token ids.
        """
        if self.above_low or set(map(type, values)) != {int}:
            return False
        return bool(self.low <= min(values) and max(values) <= self.high)

    def fits(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

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

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, bool):
            raise self.wrong(value, path)
        return value

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def json(self) -> Json:
        return {"type": "boolean"}

    @property
    def words(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Text(Schema):
    """A string; lengths are in characters, as in JSON schema."""

    shortest: int = 0
    longest: int | None = None
    pattern: str = ""
    """A regular expression that matches the whole string; it must run in linear time."""
    form: str = ""
    """JSON schema's "format"; for the documentation only."""

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, str):
            raise self.wrong(value, path)
        if len(value) < self.shortest or (self.longest is not None and len(value) > self.longest):
            raise InvalidParameter(
                path, f"{path} has {len(value):,} characters; it must be {self.words}."
            )
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise InvalidParameter(
                path, f"{path} is {shown(value)}, which does not match {self.pattern}."
            )
        return value

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def json(self) -> Json:
        schema: Json = {"type": "string"}
        if self.shortest:
            schema["minLength"] = self.shortest
        if self.longest is not None:
            schema["maxLength"] = self.longest
        if self.pattern:
            schema["pattern"] = self.pattern
        if self.form:
            schema["format"] = self.form
        return schema

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
    """A string with a JSON object, such as the arguments of a tool call. An empty string means
    `{}`, and the end may be missing, as in a call that was cut off.
    """

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, str):
            raise self.wrong(value, path)
        try:
            content = read_json(value) if value.strip() else {}
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
        return value

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def json(self) -> Json:
        return {"type": "string", "format": "json-object"}

    @property
    def words(self) -> str:
        return "a string that contains a JSON object, whose end may be missing"


@dataclass(frozen=True, slots=True)
class Sentinel(Schema):
    """A number, or -1, which means "no limit" or "off" in other servers.

    Attributes:
        meaning: the value that -1 is read as.
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
        for known in self.values:
            if type(known) is type(value) and known == value:
                return value
        raise self.wrong(value, path)

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

    of: Schema
    most: int
    least: int = 0

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, list):
            raise self.wrong(value, path)
        if not self.least <= len(value) <= self.most:
            raise InvalidParameter(
                path, f"{path} has {len(value):,} items; it must be {self.words}."
            )
        if isinstance(self.of, Number) and self.of.takes_all(value):
            return value
        items = (self.of.read(item, f"{path}[{at}]", reading) for at, item in enumerate(value))
        return [item for item in items if item is not DROPPED]

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self.of.fits(value[0]))

    def json(self) -> Json:
        schema: Json = {"type": "array", "items": self.of.json(), "maxItems": self.most}
        if self.least:
            schema["minItems"] = self.least
        return schema

    @property
    def words(self) -> str:
        return f"an array of {self.least} to {self.most:,} items"


@dataclass(frozen=True, slots=True)
class MapOf(Schema):
    """An object with arbitrary names.

    Attributes:
        names: a regular expression that every name matches as a whole.
    """

    of: Schema
    most: int
    names: str = ""

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, dict):
            raise self.wrong(value, path)
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
        schema: Json = {
            "type": "object",
            "additionalProperties": self.of.json(),
            "maxProperties": self.most,
        }
        if self.names:
            schema["propertyNames"] = {"pattern": self.names}
        return schema

    @property
    def words(self) -> str:
        return f"an object of at most {self.most:,} members"


@dataclass(frozen=True, slots=True)
class AnyOf(Schema):
    """One of several forms, selected by the type of the value, for arrays by that of the first
    item.
    """

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

    def read(self, value: Any, path: str, reading: Reading) -> Any:
        if not isinstance(value, dict):
            raise self.wrong(value, path)
        return value

    def json(self) -> Json:
        return {"type": "object"}

    @property
    def words(self) -> str:
        return "an object"


def _plain(number: float) -> float:
    return int(number) if math.isfinite(number) and number == int(number) else number
