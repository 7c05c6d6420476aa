"""Aliases: further names for models, from `[aliases]` of the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

_WILDCARD: Final = re.compile(r"[*?\[]")


class Aliases:
    """Which model each alias stands for.

    Args:
        targets: names of models by alias in lower case; an alias with `*`, `?` or `[...]` is a
            pattern of `fnmatch`.
    """

    def __init__(self, targets: Mapping[str, str] | None = None) -> None:
        self._exact: dict[str, str] = {}
        patterns: list[tuple[str, str]] = []
        for alias, target in (targets or {}).items():
            if _WILDCARD.search(alias):
                patterns.append((alias, target))
            else:
                self._exact[alias] = target
        self._patterns = sorted(patterns, key=lambda item: (-_literal_prefix(item[0]), item[0]))

    def exact(self, name: str) -> str:
        """The model that the alias `name`, in lower case, stands for; empty if it is not one."""
        return self._exact.get(name, "")

    def wildcards(self, name: str) -> Iterator[str]:
        """The models of the patterns that `name`, in lower case, matches: the pattern with the
        longest text before its first wildcard first.
        """
        return (target for pattern, target in self._patterns if fnmatchcase(name, pattern))


def _literal_prefix(pattern: str) -> int:
    """How many characters of `pattern` come before its first wildcard."""
    found = _WILDCARD.search(pattern)
    return found.start() if found else len(pattern)
