"""`hearth cache`: what is on disk of which model, and deleting it."""

from __future__ import annotations

from array import array
from pathlib import Path

from hearth.backends.engine.kv.disk_files import DiskPart, KvFolder, ident_of, owner_of, part_name


def store(home: Path, model: str, name: str, session: str, nbytes: int) -> None:
    """Write a part of `nbytes` for `session`."""
    folder = KvFolder(home / "cache" / "kv", 1 << 30)
    folder.path.mkdir(parents=True, exist_ok=True)
    owner, tokens = owner_of(session), array("i", [1, 2, 3])
    folder.begin(model, owner, name)
    ident = ident_of(b"0" * 16, 0, tokens)
    path = folder.path / model / owner / part_name(0, ident)
    data = memoryview(bytes(nbytes))
    folder.write(DiskPart(path, b"0" * 16, ident, 0, tokens, b"", nbytes), data)


def test_it_lists_models_and_clears_them(hearth, home) -> None:
    assert hearth("cache", "--json").json == {
        "models": [],
        "size_bytes": 0,
        "budget_bytes": 4 << 30,
    }
    for model, name, session in (("a", "guide", "1"), ("a", "guide", "2"), ("b", "tiny", "1")):
        store(home, model, name, session, 5_000_000)
    found = hearth("cache", "--json").json
    assert [(one["name"], one["chats"], one["files"]) for one in found["models"]] == [
        ("guide", 2, 2),
        ("tiny", 1, 1),
    ]
    assert 15_000_000 < found["size_bytes"] < 15_001_000
    shown = hearth("cache")
    assert "guide" in shown.out and "10.0 MB" in shown.out and "4.3 GB" in shown.err
    cleared = hearth("cache", "--clear")
    assert cleared.code == 0 and "15.0 MB freed" in cleared.err
    assert hearth("cache", "--json").json["size_bytes"] == 0


def test_a_folder_that_cannot_be_deleted_is_named(hearth, home, monkeypatch) -> None:
    store(home, "a", "guide", "1", 10)

    def rmtree(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", rmtree)
    failed = hearth("cache", "--clear")
    assert failed.code == 1 and "kv cannot be deleted: Permission denied" in failed.err
