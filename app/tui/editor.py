"""Edits a text in the user's own editor, while the app is suspended."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from textual.app import App, SuspendNotSupported

from hearth.backends.errors import HearthError

_USUAL: Final = ("sensible-editor", "nano", "vi", "notepad")
"""Editors to look for if neither VISUAL nor EDITOR is set."""


class EditorFailed(HearthError):
    """The user's editor cannot be used, or ended with an error."""

    code = "editor_failed"


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """The words of the editor command; the file name is appended to them.

    Raises:
        EditorFailed: no editor was found, or VISUAL or EDITOR cannot be parsed.
    """
    for name in ("VISUAL", "EDITOR"):
        if environ.get(name, "").strip():
            try:
                return shlex.split(environ[name])
            except ValueError as error:
                raise EditorFailed(
                    f"{name} cannot be read as a command: {error}.", f"Correct {name}."
                ) from error
    for program in _USUAL:
        if shutil.which(program):
            return [program]
    raise EditorFailed("No editor was found.", "Set EDITOR, for example to nano.")


async def edited(app: App[object], text: str) -> str:
    """Let the user edit `text` in their own editor, and return the result.

    The app does not draw meanwhile; answers continue. The text is stored in a file that only the
    user can read and that is removed afterwards.

    Raises:
        EditorFailed: there is no editor, it ended with an error, its text cannot be read, or the
            terminal does not support suspending the app.
    """
    command = editor_command(os.environ)
    handle, name = tempfile.mkstemp(prefix="hearth-", suffix=".md")  # 0600
    file = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass", newline="") as out:
            out.write(text)
        try:
            with app.suspend(), app.batch_update(), _interrupts_go_to_the_editor():
                await _run([*command, name])
        except SuspendNotSupported as error:
            raise EditorFailed(
                "This terminal cannot be lent to an editor.", "Write in the box instead."
            ) from error
        result = file.read_text(encoding="utf-8", errors="surrogatepass")
    except (OSError, UnicodeDecodeError) as error:
        raise EditorFailed(f"The edited text cannot be read: {error}.", "Edit again.") from error
    finally:
        file.unlink(missing_ok=True)
    return result.removesuffix("\n") if not text.endswith("\n") else result


async def _run(command: list[str]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        raise EditorFailed(
            f"{command[0]} cannot be started: {error.strerror or error}.",
            "Set EDITOR to a program that is installed.",
        ) from error
    status = await process.wait()
    if status:
        raise EditorFailed(
            f"{command[0]} ended with status {status}; the text is as it was.",
            "Edit again, and leave the editor in its usual way.",
        )


@contextmanager
def _interrupts_go_to_the_editor() -> Iterator[None]:
    """Ignore Ctrl+C here: it reaches every process of the terminal, but is for the editor.

    A handler, unlike an ignored signal, is not inherited by the program that is started.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
