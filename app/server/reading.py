"""Side results of reading a request body: ignored fields, and aliases that were used."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from hearth.backends.errors import UnsupportedParameter

log = logging.getLogger(__name__)

MOST_LOGGED: Final = 1024
MOST_NOTICES: Final = 16
LONGEST_NAME: Final = 64
_INDEX: Final = re.compile(r"\[\d+\]")


@dataclass(slots=True)
class Reading:
    """The state of reading one body.

    Attributes:
        strict: refuse fields that would be ignored (`hearth serve --strict`).
        ignored: paths of ignored fields, without array indices, in the order of the body; at most
            `MOST_NOTICES` + 1.
        sent_as: the alias by which a top-level field was sent, by the table's name.
    """

    strict: bool = False
    ignored: dict[str, None] = field(default_factory=dict)
    sent_as: dict[str, str] = field(default_factory=dict)

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
        """One sentence for each ignored field, at most `MOST_NOTICES`."""
        names = list(self.ignored)
        if len(names) > MOST_NOTICES:
            shown = names[: MOST_NOTICES - 1]
            return (*map(_notice, shown), "Further parameters have no effect.")
        return tuple(map(_notice, names))


class IgnoredFields:
    """Logs each field that had no effect once, of at most `MOST_LOGGED` of them: as a warning,
    which is the least that the server's log keeps.
    """

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def log(self, path: str, names: Iterable[str]) -> None:
        """Log that the fields `names` of a request to `path` were ignored."""
        for name in names:
            if (path, name) not in self._logged and len(self._logged) < MOST_LOGGED:
                self._logged.add((path, name))
                log.warning("%s: the field %a has no effect", path, name)


def _notice(name: str) -> str:
    return f"{name} has no effect."
