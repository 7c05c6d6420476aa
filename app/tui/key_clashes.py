"""Keys that the settings give to two bindings of one place, which does only one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.binding import Binding
from textual.dom import DOMNode

from hearth.app.tui.looks import classes


@dataclass(frozen=True, slots=True)
class KeyClash:
    """One key, and the ids of the bindings that want it, in order."""

    key: str
    bindings: tuple[str, ...]

    @property
    def text(self) -> str:
        """It in a sentence."""
        return (
            f"[keys]: {self.key} is the key of {' and of '.join(self.bindings)}: "
            "only one of them gets it."
        )

    @property
    def cure(self) -> str:
        """What to do about it."""
        return f"Give {' or '.join(self.bindings)} another key."


def key_clashes(keymap: Mapping[str, str]) -> list[KeyClash]:
    """Every key that two bindings of the same screen or widget share because of `keymap`, which
    `checked_keymap` let pass. Imports all screens unless it is empty.
    """
    if not keymap:
        return []
    found: set[KeyClash] = set()
    for kind in classes():
        usual = _bindings_of(kind)
        now = {ident: _keys(keymap[ident]) if ident in keymap else usual[ident] for ident in usual}
        for key in set().union(*now.values()):
            wanting = tuple(sorted(ident for ident in now if key in now[ident]))
            if len(wanting) > 1 and any(key not in usual[ident] for ident in wanting):
                found.add(KeyClash(key, wanting))
    return sorted(found, key=lambda clash: (clash.bindings, clash.key))


def _bindings_of(kind: type[DOMNode]) -> dict[str, set[str]]:
    """The keys of each binding with an id that a `kind` has, by id; inherited ones are its own."""
    found: dict[str, set[str]] = {}
    for base in kind.__mro__:
        for binding in Binding.make_bindings(base.__dict__.get("BINDINGS", ())):
            if binding.id:
                found.setdefault(binding.id, set()).add(binding.key)
    return found


def _keys(keys: str) -> set[str]:
    """The single keys of "f1,ctrl+h", by the names that Textual has for them."""
    return {binding.key for binding in Binding.make_bindings([(keys, "", "")])}
