"""Changes one value of the user's settings file and leaves the rest as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hearth.app.paths import private_folder
from hearth.app.settings import parse_settings, read_text
from hearth.app.settings_keys import SECTIONS, Key, Value
from hearth.backends.errors import SettingsError
from hearth.backends.machine.atomic_files import replace_file


def section_of(key: Key) -> tuple[str, ...]:
    """The table of the file that holds `key` for all models; () is the top level."""
    section = next(section for section, declared in SECTIONS.items() if key in declared)
    return (section,) if section else ()


def write_setting(file: Path, key: Key, value: Value) -> None:
    """Set `key` for all models. Raises `SettingsError` as `change` does."""
    change(file, section_of(key), key.name, key.stored(value))


def forget_setting(file: Path, key: Key) -> None:
    """Restore the default of `key`. Raises `SettingsError` as `change` does."""
    change(file, section_of(key), key.name, None)


def change(file: Path, section: Sequence[str], name: str, value: Any) -> None:
    """Set `name` in the table `section` to a TOML value; None removes it.

    Comments, order and blank lines stay. After a crash the file is complete, either old or new. A
    file that could not be read again is never written.

    Raises:
        SettingsError: the file cannot be read or written, or its old or new content is invalid.
    """
    before = read_text(file)
    parse_settings(file, before)  # Reports a mistake of the user as such.
    after = changed(before, section, name, value)
    if after == before:
        return
    parse_settings(file, after)
    try:
        private_folder(file.resolve().parent)
        replace_file(file, after)
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be written: {error.strerror or error}.",
            "Give yourself the right to write there, and make room on the disk.",
        ) from error


def changed(text: str, section: Sequence[str], name: str, value: Any) -> str:
    """The TOML document `text` with the value changed. Raises `SettingsError` if it is invalid."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        table: Any = document
        for wanted in section:
            # The file may spell the name of a model in another case.
            part = next((key for key in table if key.lower() == wanted.lower()), wanted)
            if part not in table:
                if value is None:
                    return text
                table[part] = tomlkit.table()
            table = table[part]
        table, key = _place_of(table, name)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    except (TOMLKitError, TypeError, AttributeError) as error:
        where = ".".join((*section, name))
        raise SettingsError(
            f"{where} cannot be changed in the settings file: {error}.", "Change it by hand."
        ) from error
    return tomlkit.dumps(document)


def _place_of(table: Any, name: str) -> tuple[Any, str]:
    """The table and the key that hold `name`. A name with dots is nested tables unless quoted."""
    head, _, rest = name.partition(".")
    nested = table.get(head)
    if name not in table and isinstance(nested, Mapping):
        inner, key = _place_of(nested, rest)
        if key in inner:
            return inner, key
    return table, name
