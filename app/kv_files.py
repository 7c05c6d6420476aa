"""The keys and values on disk: their size, and deleting them."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.app.paths import FolderUnusable, Paths
from hearth.backends.engine.kv.disk_files import KvFolder


@dataclass(frozen=True, slots=True)
class KvOnDisk:
    """The keys and values on disk for one model and one type of KV cache."""

    name: str
    chats: int
    files: int
    size_bytes: int


def kv_usage(paths: Paths) -> list[KvOnDisk]:
    """What is on disk, largest first."""
    rows: dict[str, KvOnDisk] = {}
    for model, name, _, files, size_bytes in KvFolder(paths.kv_cache, 0).usage():
        had = rows.get(model, KvOnDisk(name or model, 0, 0, 0))
        rows[model] = KvOnDisk(
            had.name, had.chats + 1, had.files + files, had.size_bytes + size_bytes
        )
    return sorted(rows.values(), key=lambda row: -row.size_bytes)


def clear_kv(paths: Paths) -> int:
    """Delete all keys and values on disk; returns the number of bytes. Loaded models keep running.

    Raises:
        FolderUnusable: something cannot be deleted.
    """
    try:
        return KvFolder(paths.kv_cache, 0).clear()
    except OSError as error:
        raise _undeletable(paths, error) from error


def forget_kv(paths: Paths, session: str) -> None:
    """Delete the keys and values of `session`, such as a chat.

    Raises:
        FolderUnusable: something cannot be deleted.
    """
    try:
        KvFolder(paths.kv_cache, 0).delete(session)
    except OSError as error:
        raise _undeletable(paths, error) from error


def _undeletable(paths: Paths, error: OSError) -> FolderUnusable:
    return FolderUnusable(
        f"Keys and values in {paths.kv_cache} cannot be deleted: {error.strerror or error}.",
        "Give yourself the right to write there, then run hearth cache --clear.",
    )
