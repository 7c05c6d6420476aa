"""Files that a message names with `@path`: their text goes into the message when it is sent.

Only text that a person writes is searched for such names, and only once: answers of models and the
contents of files are not. A name in backquotes or in a fenced block does not count.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hearth.app.format import binary_size
from hearth.app.library.model_files import open_regular
from hearth.app.terminal import safe_text
from hearth.backends.errors import HearthError

LARGEST_BYTES: Final = 2 << 20
"""Largest size of one file."""
MOST_FILES: Final = 32
_NAMES_SHOWN: Final = 3
_NAME_SHOWN: Final = 60
"""Most characters of a name in a notice."""
_NAME: Final = re.compile(r'(?<![^\s(\[{])@(?:"([^"\n]+)"|([^\s"`@][^\s"`]*))')
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
_AFTER_A_NAME: Final = ".,;:!?)]}'’”"
_MOST_PUNCTUATION: Final = 4
_PATH_BEGINS: Final = ("/", "./", "../", "~/")
_LANGUAGE: Final = re.compile(r"\.([A-Za-z][A-Za-z0-9+-]{0,9})")
_BLOCK: Final = re.compile(r"\n\n([^\n]+):\n(`{3,})[^`\n]*\n(.*?)\2(?=\n\n|\Z)", re.DOTALL)


class AttachmentRefused(HearthError):
    """A file that a message names cannot go into it."""

    code = "attachment_refused"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Attached:
    """A file in a message.

    Attributes:
        path: the path that the message shows.
        bytes: size of the file.
    """

    path: Path
    bytes: int
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A message as it is sent.

    Attributes:
        files: the files in the message, in order.
        unmatched: names after an @ that match no file; they stay in the text unchanged.
    """

    text: str
    files: tuple[Attached, ...] = ()
    unmatched: tuple[str, ...] = ()


def expand(text: str, folder: Path) -> Expanded:
    """`text` followed by the files that it names, each as a fenced block with its name.

    Args:
        folder: base of relative paths.

    Raises:
        AttachmentRefused: a named file is a folder or a device, is not text, is over 2 MiB or
            cannot be read; no file has a name that is quoted or begins with /, ./, ../ or ~/; or
            the message names more than 32 files.
    """
    files: dict[Path, Attached] = {}
    unmatched: list[str] = []
    for written, is_quoted in _names(text):
        path = _found(written, folder, is_quoted)
        if path is None:
            unmatched.append(written)
        elif path not in files:
            files[path] = _read(path, folder)
        if len(files) > MOST_FILES:
            raise AttachmentRefused(
                f"The message names more than {MOST_FILES} files.", "Send some of them later."
            )
    blocks = [_block(file) for file in files.values()]
    whole = "\n\n".join([text.rstrip("\n"), *blocks]) if blocks else text
    return Expanded(whole, tuple(files.values()), tuple(dict.fromkeys(unmatched)))


def split(content: str) -> tuple[str, tuple[Attached, ...]]:
    """The text written in the message `content`, and the files that `expand` appended to it."""
    for first in _BLOCK.finditer(content):
        written, at = content[: first.start()], first.start()
        files: list[Attached] = []
        while (block := _BLOCK.match(content, at)) and Path(block[1]).name in written:
            files.append(Attached(Path(block[1]), len(block[3].encode()), block[3]))
            at = block.end()
        if files and at == len(content):
            return written, tuple(files)
    return content, ()


def in_words(files: tuple[Attached, ...]) -> str:
    """Names and sizes of `files`, safe to show; empty without files."""
    return ", ".join(f"{safe_text(str(file.path))} {binary_size(file.bytes)}" for file in files)


def not_found(names: Sequence[str]) -> str:
    """A notice that no file matches `names`, which follow an @; empty without names."""
    if not names:
        return ""
    said = [f"@{name if len(name) <= _NAME_SHOWN else name[:_NAME_SHOWN] + '…'}" for name in names]
    if len(said) > _NAMES_SHOWN:
        said[_NAMES_SHOWN:] = [f"{len(said) - _NAMES_SHOWN} more"]
    return f"No such file: {', '.join(said)}. Sent as plain text."


def quoted(path: str) -> str | None:
    """`path` as a message names it, with its @; None if no message can name it."""
    if '"' in path or "\n" in path:
        return None
    return f'@"{path}"' if re.search(r"[\s`@]", path) else f"@{path}"


def _names(text: str) -> Iterator[tuple[str, bool]]:
    """Names after an @ outside fenced blocks, and whether each is quoted."""
    fences = _fenced(text)
    for match in _NAME.finditer(text):
        if not any(begin <= match.start() < end for begin, end in fences):
            yield match[1] or match[2], match[1] is not None


def _fenced(text: str) -> list[tuple[int, int]]:
    """Begin and end of each fenced block, including one that is not closed."""
    blocks: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match[1].startswith(opened[1]):
            blocks.append((opened.start(), match.end()))
            opened = None
    return [*blocks, (opened.start(), len(text))] if opened is not None else blocks


def _found(written: str, folder: Path, is_quoted: bool) -> Path | None:
    """The path of the named file, ignoring punctuation after the name; None if it does not exist.

    Raises:
        AttachmentRefused: the file does not exist, and the text can only be a path.
    """
    name = written
    for _ in range(_MOST_PUNCTUATION):
        path = _path(name, folder)
        if path is not None:
            return path
        if is_quoted or name[-1] not in _AFTER_A_NAME or len(name) == 1:
            break
        name = name[:-1]
    if is_quoted or written.startswith(_PATH_BEGINS):
        raise AttachmentRefused(
            f"There is no file {written}.",
            f"Correct the name; it is looked for in {folder}. In backquotes it is only text.",
        )
    return None


def _path(name: str, folder: Path) -> Path | None:
    try:
        path = folder / Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # Too long, NUL, or the home of an unknown user.
        return None


def _read(path: Path, folder: Path) -> Attached:
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    try:
        data, size = _contents(path, shown)
    except OSError as error:
        raise AttachmentRefused(
            f"{shown} cannot be read: {error.strerror or error}.", "Check the file's permissions."
        ) from error
    if len(data) > LARGEST_BYTES:
        raise AttachmentRefused(
            f"{shown} has {binary_size(size)}; at most {binary_size(LARGEST_BYTES)} can go into a "
            "message.",
            "Paste the part that matters.",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachmentRefused(
            f"{shown} is not text in UTF-8.", "Only text can go into a message: convert the file."
        )
    return Attached(shown, len(data), text)


def _contents(path: Path, shown: Path) -> tuple[bytes, int]:
    """The first bytes of a file, at most one more than allowed, and the size of the file."""
    try:
        with open_regular(path) as file:
            return file.read(LARGEST_BYTES + 1), os.fstat(file.fileno()).st_size
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        what = "a folder" if path.is_dir() else "no file"
        raise AttachmentRefused(
            f"{shown} is {what}.", "Name a file; a name in backquotes is only text."
        ) from error


def _block(file: Attached) -> str:
    name = " ".join(safe_text(str(file.path)).split("\n"))
    longest = max((len(run) for run in re.findall(r"`+", file.text)), default=0)
    fence = "`" * max(3, longest + 1)
    suffix = _LANGUAGE.fullmatch(file.path.suffix)
    end = "" if file.text.endswith("\n") or not file.text else "\n"
    return f"{name}:\n{fence}{suffix[1] if suffix else ''}\n{file.text}{end}{fence}"
