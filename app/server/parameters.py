"""The one parameter table: every field of every body, and what is done with it.

A field is honoured, accepted without an effect, or refused by name; one that stands in no table is
refused as well, so that nothing is ignored in silence. The tables (`app.server.tables`) drive what
is accepted, `/openapi.json`, `/v1/capabilities` and `docs/api.md`. Ranges of numbers come from
`backends.engine.validate`, where flags, settings and forms get theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hearth.app.nearest import did_you_mean
from hearth.app.server.schema import Json, Schema
from hearth.backends.errors import InvalidParameter, UnsupportedParameter

Treatment = Literal["honoured", "without effect", "refused"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of an object.

    Attributes:
        name: as clients write it.
        schema: its values; of a refused one: those that ask for nothing, and so are accepted.
        help: what it does, or why it is without effect or refused; one line.
        default: what holds where it is absent, in words; empty: nothing does.
        required: it must be there. Otherwise null is the same as absent, as OpenAI has it.
    """

    name: str
    schema: Schema | None
    help: str
    treatment: Treatment = "honoured"
    default: str = ""
    required: bool = False

    def json(self) -> Json:
        """Its JSON schema with the description."""
        found: Json = {"type": "null"}
        if self.schema is not None:
            found = self.schema.json()
            if not self.required:
                found = {"anyOf": [found, {"type": "null"}]}
        said = (
            f"{self.help}." if self.treatment == "honoured" else f"{self.treatment}: {self.help}."
        )
        if self.default:
            said += f" Default: {self.default}."
        return {**found, "description": said[0].upper() + said[1:]}


def honoured(
    name: str, schema: Schema, help_: str, default: str = "", *, required: bool = False
) -> Parameter:
    """A field that does what it says."""
    return Parameter(name, schema, help_, default=default, required=required)


def without_effect(name: str, schema: Schema, why: str) -> Parameter:
    """A field that changes no answer of a server on one machine, and is documented so."""
    return Parameter(name, schema, why, "without effect")


def refused(name: str, why: str, neutral: Schema | None = None) -> Parameter:
    """A field that cannot be honoured; `neutral` values ask for nothing."""
    return Parameter(name, neutral, why, "refused")


@dataclass(frozen=True, slots=True)
class Table(Schema):
    """An object with known fields: the body of an endpoint, or a part of one.

    Attributes:
        title: its name in the documentation.
        place: what a body's path begins with; empty for the body itself.
    """

    title: str
    parameters: tuple[Parameter, ...]

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def read(self, value: Any, path: str = "") -> Any:
        """The fields that are honoured, without those that are null.

        Raises:
            InvalidParameter: a field is unknown, missing, or has a wrong value.
            UnsupportedParameter: one that is known and cannot be honoured.
        """
        if not isinstance(value, dict):
            raise self.wrong(value, path)
        known = {parameter.name: parameter for parameter in self.parameters}
        prefix = f"{path}." if path else ""
        given: dict[str, Any] = {}
        for name, item in value.items():
            parameter = known.get(name)
            place = f"{prefix}{name[:100]}"
            if parameter is None:
                raise InvalidParameter(
                    place,
                    f'There is no parameter "{place}" here.{did_you_mean(name[:100], known)}',
                    "Leave it out.",
                )
            if item is None and not parameter.required:
                continue
            read = self._value(parameter, item, place)
            if parameter.treatment == "honoured":
                given[name] = read
        for parameter in self.parameters:
            if parameter.required and parameter.name not in value:
                place = prefix + parameter.name
                assert parameter.schema is not None
                raise InvalidParameter(
                    place, f"{place} is missing.", f"Send {parameter.schema.words}."
                )
        return given

    def _value(self, parameter: Parameter, value: Any, place: str) -> Any:
        if parameter.treatment != "refused":
            assert parameter.schema is not None
            return parameter.schema.read(value, place)
        try:
            if parameter.schema is not None:
                return parameter.schema.read(value, place)
        except InvalidParameter:
            pass  # Not one of those that ask for nothing.
        raise UnsupportedParameter(place, f"{place} is refused: {parameter.help}.", "Leave it out.")

    def json(self) -> Json:
        found: Json = {
            "type": "object",
            "title": self.title,
            "properties": {parameter.name: parameter.json() for parameter in self.parameters},
            "additionalProperties": False,
        }
        required = [parameter.name for parameter in self.parameters if parameter.required]
        if required:
            found["required"] = required
        return found

    @property
    def words(self) -> str:
        return "an object"


@dataclass(frozen=True, slots=True)
class Tagged(Schema):
    """Objects of several kinds, told apart by one field, such as "type" or "role".

    Attributes:
        key: that field, which stands in every table too.
        kinds: the table for each of its values.
        refused: values that are known and cannot be honoured, and why.
        default: the kind of an object without the field, or with null; empty: it must be there.
    """

    key: str
    kinds: dict[str, Table]
    refused: dict[str, str]
    default: str = ""

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise self.wrong(value, path)
        kind = value.get(self.key)
        if kind is None:
            kind = self.default or None
        place = f"{path}.{self.key}"
        if isinstance(kind, str) and kind in self.refused:
            raise UnsupportedParameter(place, f'{place} "{kind}" is refused: {self.refused[kind]}.')
        if not isinstance(kind, str) or kind not in self.kinds:
            raise InvalidParameter(place, f"{place} must be one of {', '.join(self.kinds)}.")
        return self.kinds[kind].read(value, path)

    def json(self) -> Json:
        return {"oneOf": [table.json() for table in self.kinds.values()]}

    @property
    def words(self) -> str:
        return "an object"
