"""What headers say is remembered, for as long as the files are as they were."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.app.library import facts
from hearth.app.library.facts import KnownFacts
from hearth.app.library.local import Library
from hearth.backends.errors import CorruptFile
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A model of the library folder."""
    (tmp_path / "models").mkdir()
    return Path(shutil.copy(made, tmp_path / "models" / "tiny.gguf"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models.json"


@pytest.fixture
def library(model: Path, file: Path) -> Library:
    return Library(model.parent, bundled=model.parent / "none", facts_file=file)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The model files whose headers were read."""
    found: list[Path] = []
    check = preflight.check

    def noted(path: Path) -> object:
        found.append(path)
        return check(path)

    monkeypatch.setattr(preflight, "check", noted)
    return found


def test_a_header_is_read_once(library: Library, reads: list[Path]) -> None:
    first = library.list()
    assert library.list() == first
    assert len(reads) == 1
    assert first[0].architecture == "llama" and first[0].parameters and first[0].size_bytes


def test_one_that_is_asked_for_anew_is_read_anew(library: Library, reads: list[Path]) -> None:
    library.list()
    library.list(refresh=True)
    assert len(reads) == 2


def another_inode(path: Path) -> None:
    """Put a copy in the file's place, which looks the same but for its inode."""
    copy = shutil.copy2(path, path.with_name("copy"))
    os.replace(copy, path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        another_inode,
    ],
)
def test_another_file_under_the_name_is_read(
    library: Library, model: Path, reads: list[Path], change: Callable[[Path], object]
) -> None:
    library.list()
    change(model)
    library.list()
    assert reads.count(model) == 2


def test_a_model_in_parts_is_as_it_was_while_all_of_them_are(
    made: Path, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        shutil.copy(made, part)
    header = preflight.check(made)
    reads: list[Path] = []

    def check(path: Path) -> GgufFile:
        reads.append(path)
        return replace(header, shards=(header,))

    monkeypatch.setattr(preflight, "check", check)
    known = KnownFacts(file)
    assert known.of(parts[0]) == known.of(parts[0])
    assert len(reads) == 1
    os.utime(parts[1], ns=(1, 1))
    known.of(parts[0])
    assert len(reads) == 2
    parts[1].unlink()
    known.of(parts[0])
    assert len(reads) == 3


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 0, "models": {}}',
        '{"version": 1, "models": {"a": 5}}',
        '{"version": 1, "models": {"a": {"states": [], "facts": {}}}}',
        "[" * 100_000,
    ],
)
def test_what_is_damaged_is_made_anew(
    library: Library, file: Path, reads: list[Path], text: str
) -> None:
    file.parent.mkdir()
    file.write_text(text)
    found = library.list()
    assert found[0].architecture == "llama"
    assert library.list() == found and len(reads) == 1


def test_facts_of_another_type_are_not_believed(
    library: Library, file: Path, reads: list[Path]
) -> None:
    library.list()
    document = json.loads(file.read_text())
    (entry,) = document["models"].values()
    entry["facts"]["parameters"] = "many"
    file.write_text(json.dumps(document))
    assert isinstance(library.list()[0].parameters, int) and len(reads) == 2


def test_a_bad_file_is_read_each_time(model: Path, file: Path) -> None:
    model.write_bytes(b"GGUF")
    known = KnownFacts(file)
    for _ in range(2):
        with pytest.raises(CorruptFile):
            known.of(model)
    known.keep()
    assert not file.exists()


def test_only_the_latest_are_kept(
    made: Path, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MOST", 2)
    known = KnownFacts(file)
    for name in ("a", "b", "c"):
        known.of(Path(shutil.copy(made, tmp_path / f"{name}.gguf")))
    known.of(tmp_path / "a.gguf")
    known.keep()
    kept = json.loads(file.read_text())["models"]
    assert [Path(path).stem for path in kept] == ["c", "a"]


def test_without_a_place_to_write_a_list_is_whole(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    library = Library(model.parent, model.parent, facts_file=tmp_path / "cache" / "models.json")
    assert [one.name for one in library.list()] == ["tiny"]
