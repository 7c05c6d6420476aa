"""The history of the prompt box, kept on disk."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Final

from hearth.app.paths import private_folder
from hearth.backends.machine.atomic_files import replace_file

MOST: Final = 1_000
"""Most prompts that are kept."""
LONGEST: Final = 64 * 1024
"""Most characters of a prompt kept on disk; a longer one is remembered until the app ends."""
LARGEST_FILE_BYTES: Final = 16 << 20


class PromptHistory:
    """Prompts, oldest first, in a file that only its owner can access: one JSON string per line.

    After a crash the file has either its old or its new contents, complete; a line that is not a
    JSON string is skipped. Several apps may share one file: each appends to its current contents.

    Args:
        file: neither it nor its folder need exist.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = _read(file)
        self._at = len(self._entries)
        self._draft = ""
        self._writing = threading.Lock()

    @property
    def entries(self) -> tuple[str, ...]:
        """All prompts, oldest first."""
        return tuple(self._entries)

    def add(self, text: str) -> bool:
        """Remember `text` unless it is blank or repeats the last; True if `keep` is to write it."""
        is_new = bool(text.strip()) and self._entries[-1:] != [text]
        if is_new:
            self._entries = [*self._entries, text][-MOST:]
        self._at = len(self._entries)
        return is_new and len(text) <= LONGEST

    def keep(self, text: str) -> None:
        """Append `text` to the prompts now in the file. May run in a thread. Raises `OSError`."""
        with self._writing:
            before = _read(self._file)
            if before[-1:] != [text]:
                _write(self._file, [*before, text][-MOST:])

    def older(self, draft: str) -> str | None:
        """The prompt before the one shown; None if the oldest is shown.

        Args:
            draft: text in the box; `newer` returns it after the last prompt.
        """
        if self._at == 0:
            return None
        if self._at == len(self._entries):
            self._draft = draft
        self._at -= 1
        return self._entries[self._at]

    def newer(self) -> str | None:
        """The prompt after the one shown, then the draft, then None."""
        if self._at == len(self._entries):
            return None
        self._at += 1
        return self._draft if self._at == len(self._entries) else self._entries[self._at]


def _read(file: Path) -> list[str]:
    """The prompts in `file`; none if it cannot be read, which only costs the user some retyping."""
    try:
        if file.stat().st_size > LARGEST_FILE_BYTES:
            return []
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    prompts: list[str] = []
    for line in lines:
        try:
            text = json.loads(line)
        except ValueError:
            continue
        if isinstance(text, str) and prompts[-1:] != [text]:
            prompts.append(text)
    return prompts[-MOST:]


def _write(file: Path, entries: list[str]) -> None:
    lines = [json.dumps(text) + "\n" for text in entries]  # ASCII, so lengths are bytes.
    while sum(map(len, lines)) > LARGEST_FILE_BYTES:
        del lines[0]
    private_folder(file.resolve().parent)
    replace_file(file, "".join(lines))
