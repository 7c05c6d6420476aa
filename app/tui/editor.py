"""The user's own editor on a text, while the app steps aside."""

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
"""Looked for where neither VISUAL nor EDITOR says which."""


class EditorFailed(HearthError):
    """The user's editor cannot be used, or ended with an error."""

    code = "editor_failed"


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """The words of the command that edits a file, which follows them.

    Raises:
        EditorFailed: there is none, or VISUAL or EDITOR cannot be read.
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
    """`text` after the user's editor had it. The app does not draw meanwhile; answers go on.

    The text is in a file that only the user can read, and that is removed afterwards.

    Raises:
        EditorFailed: there is no editor, it ended with an error, or the terminal cannot be lent.
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
        found = file.read_text(encoding="utf-8", errors="surrogatepass")
    except (OSError, UnicodeDecodeError) as error:
        raise EditorFailed(f"The edited text cannot be read: {error}.", "Edit again.") from error
    finally:
        file.unlink(missing_ok=True)
    return found.removesuffix("\n") if not text.endswith("\n") else found


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
    """Ctrl+C reaches everybody on the terminal; here it means the editor. A handler, as opposed to
    ignoring the signal, is not inherited by the program that is started.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
