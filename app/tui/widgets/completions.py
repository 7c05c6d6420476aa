"""Completions of the word at the cursor: slash commands, and names of files after an @."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from hearth.app.slash_commands import CHAT_SETTINGS, COMMANDS, beginning, find
from hearth.app.terminal import safe_text
from hearth.app.tui.attachments import quoted

MOST: Final = 8
"""Rows of the list, and most files offered."""
_MOST_ENTRIES: Final = 5_000
"""Most entries of a folder that are read."""
_COMMAND: Final = re.compile(r"/([\w-]*)")
_ARGUMENT: Final = re.compile(r"/([\w-]+) +(\S*)")
_PATH: Final = re.compile(r'(?<![^\s(\[{])@(?:"([^"\n]*)|([^\s"`@]*))$')


@dataclass(frozen=True, slots=True)
class Completion:
    """A text that can replace what is written.

    Attributes:
        begin: index in the line of the first replaced character; the replaced text ends at the
            cursor.
        text: the replacement.
        label: what the list shows; not yet safe.
        detail: shown after the label.
    """

    begin: int
    text: str
    label: str
    detail: str = ""

    def fits(self, line: str) -> bool:
        """Whether it still completes `line`, which ends at the cursor."""
        written = line[self.begin :].replace('"', "").lower()
        return bool(written) and self.text.replace('"', "").lower().startswith(written)


def of_commands(line: str) -> list[Completion]:
    """Slash commands, or words that may follow one, for the first line up to the cursor."""
    if (named := _COMMAND.fullmatch(line)) is not None:
        return [
            Completion(
                0, f"/{matching.name}{' ' * bool(matching.argument)}", matching.usage, matching.help
            )
            for matching in beginning(named[1])
        ]
    if line == "?":
        return [Completion(0, "? ", "? QUESTION", COMMANDS["guide"].help)]
    if (argued := _ARGUMENT.fullmatch(line)) is not None:
        command = find(argued[1])
        words = command.words if command is not None else ()
        if command is COMMANDS["set"]:
            words = tuple(CHAT_SETTINGS)
        return [
            Completion(argued.start(2), word, word) for word in words if word.startswith(argued[2])
        ]
    return []


def path_at(line: str) -> tuple[int, str] | None:
    """Where the @ before the cursor is, and the name after it; None if there is none.

    The cursor is at the end of `line`.
    """
    match = _PATH.search(line)
    return (
        None if match is None else (match.start(), match[1] if match[1] is not None else match[2])
    )


def of_paths(line: str, folder: Path) -> list[Completion]:
    """Files and folders for the @ before the cursor. Reads a folder: call it in a thread."""
    if (at := path_at(line)) is None:
        return []
    begin, written = at
    above, _, start = written.rpartition("/")
    above += "/" if "/" in written else ""
    completions = []
    for name, is_folder in _entries(folder, above):
        if not name.lower().startswith(start.lower()) or (name[0] == "." and not start):
            continue
        text = quoted(above + name + "/" * is_folder)
        if text is not None:
            if is_folder:
                text = text.removesuffix('"')  # The name continues.
            completions.append(Completion(begin, text, name + "/" * is_folder))
    return completions[:MOST]


def _entries(folder: Path, above: str) -> list[tuple[str, bool]]:
    """Names in a folder, folders first, and whether each is a folder.

    Empty if the folder cannot be read: there is nothing to offer then.
    """
    try:
        with os.scandir(folder / Path(above).expanduser()) as entries:
            names = [(entry.name, entry.is_dir()) for entry in islice(entries, _MOST_ENTRIES)]
    except (OSError, ValueError, RuntimeError):  # Not there, NUL, or the home of an unknown user.
        return []
    return sorted(names, key=lambda one: (not one[1], one[0].lower()))


class Completions(OptionList, can_focus=False):
    """A small list of completions above the box; the box has the focus and controls the list."""

    DEFAULT_CSS = """
    Completions {
        display: none;
        height: auto;
        max-height: 8;
        border: none;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        scrollbar-size-vertical: 1;
    }
    Completions.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.found: list[Completion] = []
        self.is_chosen = False
        """Whether the user moved to an entry, and did not only continue to write."""

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose from."""
        return bool(self.found)

    def show(self, found: Sequence[Completion]) -> None:
        """Offer these, with the first one marked; close the list if there are none."""
        self.found = list(found)
        self.is_chosen = False
        self.clear_options()
        width = max((len(one.label) for one in found), default=0)
        self.add_options(
            Option(
                Content.assemble(
                    safe_text(one.label).ljust(width).replace("\n", "�"),
                    (f"  {one.detail}" if one.detail else "", "dim"),
                )
            )
            for one in found
        )
        if found:
            self.highlighted = 0
        self.set_class(bool(found), "-shown")

    def move(self, by: int) -> None:
        """Mark the next or the previous entry."""
        self.is_chosen = True
        if by > 0:
            self.action_cursor_down()
        else:
            self.action_cursor_up()

    @property
    def marked(self) -> Completion | None:
        """The entry that would be taken."""
        return self.found[self.highlighted or 0] if self.found else None
