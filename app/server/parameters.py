"""The request tables: every field that a body may have, and what is done with it.

A field is in one of three classes:

- *honoured*: it has its documented effect; its type and range are checked;
- *refused*: ignoring it would give the client something other than what it asked for, so the answer
  is a 400 that names it;
- *without effect*: hints, telemetry and tuning of other servers. Any value is accepted, and the
  notices of the answer name the field. Fields that are in no table are in this class too, unless
  they look like a misspelt honoured one.

The tables (`app.server.tables`) drive what is accepted, `/openapi.json`, `/v1/capabilities` and
`docs/api.md`. Ranges of numbers come from `backends.contract.fields`, like those of flags, settings
and forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hearth.app.nearest import one_edit_apart
from hearth.app.server.schema import DROPPED, Json, Reading, Schema, shown
from hearth.backends.errors import (
    ConflictingParameters,
    InvalidParameter,
    UnsupportedParameter,
)

Treatment = Literal["honoured", "without effect", "refused"]
SHORTEST_MISSPELT: Final = 6
"""Unknown names shorter than this are never treated as misspelt."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of an object.

    Attributes:
        name: as clients write it.
        schema: the values of an honoured field. For another field, the neutral values, which are
            accepted without a notice; None: only null is neutral.
        help: what the field does, or why it has no effect or is refused; one line.
        default: description of the value that applies if the field is absent; empty: none.
        required: whether the field must be present. If not, null is the same as absent, as in
            OpenAI's API.
        details: machine-readable details of the error, for a refused field.
        aliases: further names of the field, which other servers use.
    """

    name: str
    schema: Schema | None
    help: str
    treatment: Treatment = "honoured"
    default: str = ""
    required: bool = False
    aliases: tuple[str, ...] = ()
    details: Mapping[str, Any] | None = None

    def json(self) -> Json:
        """The field's JSON schema with its description."""
        schema: Json = {}
        if self.treatment == "refused":
            schema = {"type": "null"}
        if self.schema is not None and self.treatment != "without effect":
            schema = self.schema.json()
            if not self.required:
                schema = {"anyOf": [schema, {"type": "null"}]}
        text = f"{self.help}."
        if self.treatment != "honoured":
            text = f"{self.treatment}: {text}"
        if self.default:
            text += f" Default: {self.default}."
        return {**schema, "description": text[0].upper() + text[1:]}

    def is_neutral(self, value: Any) -> bool:
        """Whether `value` requests nothing; for fields that are not honoured."""
        if self.schema is None:
            return False
        try:
            self.schema.read(value, self.name, Reading(strict=True))
        except InvalidParameter:
            return False
        return True


def honoured(
    name: str,
    schema: Schema,
    help_: str,
    default: str = "",
    *,
    required: bool = False,
    aliases: tuple[str, ...] = (),
) -> Parameter:
    """A field that has its documented effect."""
    return Parameter(name, schema, help_, default=default, required=required, aliases=aliases)


def without_effect(name: str, why: str, neutral: Schema | None = None) -> Parameter:
    """A field that is accepted with any value; `neutral` values cause no notice."""
    return Parameter(name, neutral, why, "without effect")


def refused(
    name: str,
    why: str,
    neutral: Schema | None = None,
    details: Mapping[str, Any] | None = None,
) -> Parameter:
    """A field that must not be ignored and cannot be honoured; `neutral` values are accepted."""
    return Parameter(name, neutral, why, "refused", details=details)


@dataclass(frozen=True, slots=True)
class Table(Schema):
    """An object with known fields: the body of an endpoint, or a part of one.

    Attributes:
        title: the table's name in the documentation.
        check_spelling: whether an unknown name that is one edit away from the name of an honoured
            field is an error; it always is in the body itself.
    """

    title: str
    parameters: tuple[Parameter, ...]
    check_spelling: bool = False
    _by_name: dict[str, Parameter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {
            name: parameter
            for parameter in self.parameters
            for name in (parameter.name, *parameter.aliases)
        }
        object.__setattr__(self, "_by_name", names)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        """The honoured fields that are not null, by the table's names.

        Raises:
            InvalidParameter: a field is missing, misspelt, or has a wrong value.
            UnsupportedParameter: a field must not be ignored and cannot be honoured.
            ConflictingParameters: two names of one field have different values.
        """
        prefix = f"{path}." if path else ""
        given: dict[str, Any] = {}
        for name, item in value.items():
            parameter = self._by_name.get(name)
            place = f"{prefix}{name[:100]}"
            if parameter is None:
                self._check_spelling(name, path, place)
                if item is not None:
                    reading.ignore(place)
            elif item is None and not parameter.required:
                continue
            elif parameter.treatment == "honoured":
                assert parameter.schema is not None
                read = parameter.schema.read(item, place, reading)
                self._keep(given, parameter.name, read, place)
                if name != parameter.name and not path:
                    reading.sent_as[parameter.name] = name
            elif parameter.is_neutral(item):
                continue
            elif parameter.treatment == "refused":
                raise UnsupportedParameter(
                    place,
                    f"{place} is not supported: {parameter.help}.",
                    "Leave it out.",
                    **({"details": parameter.details} if parameter.details else {}),
                )
            else:
                reading.ignore(place)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in given:
                place = prefix + parameter.name
                assert parameter.schema is not None
                raise InvalidParameter(
                    place, f"{place} is missing.", f"Send {parameter.schema.words}."
                )
        return given

    def _keep(self, given: dict[str, Any], name: str, value: Any, place: str) -> None:
        if given.get(name, value) != value:
            raise ConflictingParameters(
                place,
                f"{place} and another name of the same parameter ({name}) have different values.",
                "Send one of them.",
            )
        given[name] = value

    def _check_spelling(self, name: str, path: str, place: str) -> None:
        """Raises `InvalidParameter` if the unknown `name` looks like a misspelt known name."""
        if len(name) < SHORTEST_MISSPELT or (path and not self.check_spelling):
            return
        for known, parameter in self._by_name.items():
            if parameter.treatment == "honoured" and one_edit_apart(name, known):
                raise InvalidParameter(
                    place,
                    f'Unknown parameter "{place}". Did you mean {known}?',
                    "Correct the name, or leave it out.",
                )

    def json(self) -> Json:
        schema: Json = {
            "type": "object",
            "title": self.title,
            "properties": {
                name: parameter.json()
                for parameter in self.parameters
                for name in (parameter.name, *parameter.aliases)
            },
        }
        required = [parameter.name for parameter in self.parameters if parameter.required]
        return schema | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True)
class Tagged(Schema):
    """Objects of several kinds, distinguished by one field, such as "type" or "role".

    Attributes:
        key: the name of that field, which every table also contains.
        kinds: the table for each value of the field.
        refused: values that are known but cannot be honoured, and why.
        default: the kind of an object whose field is absent or null; empty: the field is required.
        drops: whether array items of any other kind are left out, with a notice.
    """

    key: str
    kinds: dict[str, Table]
    refused: dict[str, str]
    default: str = ""
    drops: bool = False

    def checked(self, value: Any, path: str, reading: Reading) -> Any:
        kind = value.get(self.key)
        if kind is None:
            kind = self.default or None
        place = f"{path}.{self.key}"
        if isinstance(kind, str) and kind in self.refused:
            raise UnsupportedParameter(
                place, f'{place} "{kind}" is not supported: {self.refused[kind]}.', "Leave it out."
            )
        if not isinstance(kind, str) or (kind not in self.kinds and not self.drops):
            kinds = f"must be one of {', '.join(self.kinds)}"
            raise InvalidParameter(
                place,
                f"{place} is missing; it {kinds}."
                if kind is None
                else f"{place} {kinds}, not {shown(kind)}.",
            )
        if kind not in self.kinds:
            reading.ignore(f"{path} ({kind})")
            return DROPPED
        return self.kinds[kind].read(value, path, reading)

    def json(self) -> Json:
        kinds = [table.json() for table in self.kinds.values()]
        if not self.drops:
            return {"oneOf": kinds}
        others = {"not": {"enum": sorted(self.kinds)}, "type": "string"}
        dropped = {"type": "object", "properties": {self.key: others}, "required": [self.key]}
        return {"oneOf": [*kinds, dropped]}
