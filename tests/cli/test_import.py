"""`hearth import`: checked first, whole or not at all, nothing overwritten."""

from __future__ import annotations

import functools
import pickle
import shutil
import sys
from pathlib import Path

import gguf
import pytest

import gguf_builder
from hearth.app.library import adopt as adopting
from hearth.app.library.adopt import ImportRefused, adopt, plan_adoption
from hearth.app.library.local import Library
from hearth.backends.errors import HearthError


@pytest.fixture
def models(home: Path) -> Path:
    return home / "data" / "models"


@pytest.fixture
def new(tmp_path: Path, tiny_model: Path) -> Path:
    path = tmp_path / "downloads" / "new.gguf"
    path.parent.mkdir()
    shutil.copy(tiny_model, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_is_listed_and_the_original_stays(hearth, models, new) -> None:
    result = hearth("import", str(new))
    assert result.code == 0 and "copied new" in result.out
    assert (models / "new.gguf").read_bytes() == new.read_bytes()
    assert names(models) == ["new.gguf", "tiny.gguf"]
    assert "new" in hearth("list").out


def test_a_name_that_is_taken_is_not_the_one_that_is_told(hearth, new) -> None:
    answer = hearth("import", "--json", str(new), "--name", "guide").json
    assert answer["name"] == "guide.gguf"
    assert hearth("show", answer["name"], "--json").json["path"] == answer["path"]


def test_a_move_leaves_nothing_behind(hearth, models, new) -> None:
    answer = hearth("import", "--move", "--json", str(new)).json
    assert answer["path"] == str(models / "new.gguf") and answer["way"] == "move"
    assert not new.exists() and (models / "new.gguf").stat().st_nlink == 1


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_leaves_the_file_where_it_is(hearth, models, new) -> None:
    assert hearth("import", "--link", str(new), "--name", "there").code == 0
    assert (models / "there.gguf").readlink() == new
    assert hearth("show", "there").code == 0


def test_the_one_model_of_a_folder_is_taken(hearth, models, new) -> None:
    assert hearth("import", str(new.parent), "--name", "Other.gguf").code == 0
    assert names(models) == ["Other.gguf", "tiny.gguf"]


def test_a_folder_of_several_asks_which(hearth, new) -> None:
    shutil.copy(new, new.with_name("second.gguf"))
    result = hearth("import", str(new.parent))
    assert result.code == 3 and "new.gguf, second.gguf" in result.err


def test_nothing_is_overwritten_or_imported_twice(hearth, models, new) -> None:
    before = (models / "tiny.gguf").read_bytes()
    result = hearth("import", str(new), "--name", "tiny")
    assert result.code == 1 and "--name" in result.err
    result = hearth("import", str(models / "tiny.gguf"), "--name", "twice")
    assert result.code == 1 and "already" in result.err
    assert (models / "tiny.gguf").read_bytes() == before
    assert names(models) == ["tiny.gguf"]


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a\\b", "x" * 201, "a\nb", "a:b", "end."])
def test_names_that_are_no_names_of_files_are_refused(hearth, models, new, name) -> None:
    assert hearth("import", str(new), "--name", name).code == 1
    assert names(models) == ["tiny.gguf"]


def test_pickles_are_refused_with_the_reason(hearth, new) -> None:
    new.write_bytes(pickle.dumps({"a": 1}))
    result = hearth("import", str(new))
    assert result.code == 1 and "can run any code" in result.err
    new.unlink()
    (new.parent / "pytorch_model.bin").write_bytes(b"x")
    result = hearth("import", str(new.parent))
    assert result.code == 1 and "can run any code" in result.err


def test_a_damaged_file_is_refused_before_anything_is_written(hearth, models, new) -> None:
    new.write_bytes(new.read_bytes()[:5000])
    result = hearth("import", str(new), "--json")
    assert result.json["error"]["code"] == "corrupt_file"
    assert names(models) == ["tiny.gguf"]


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The parts of a split model."""
    parts = functools.partial(gguf.GGUFWriter, split_max_tensors=8)
    monkeypatch.setattr(gguf_builder.gguf, "GGUFWriter", parts)
    folder = tmp_path / "split"
    folder.mkdir()
    gguf_builder.tiny_llama(folder / "big.gguf")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("way", ["--copy", "--move", "--link"])
def test_all_parts_of_a_split_model_come_along(hearth, models, split, way) -> None:
    if way == "--link" and sys.platform == "win32":
        pytest.skip("links need a privilege there")
    contents = [part.read_bytes() for part in split]
    answer = hearth("import", way, str(split[0].parent), "--name", "huge", "--json").json
    assert [Path(file).name for file in answer["files"]] == [
        *("huge-00001-of-00003.gguf", "huge-00002-of-00003.gguf", "huge-00003-of-00003.gguf")
    ]
    assert [Path(file).read_bytes() for file in answer["files"]] == contents
    assert hearth("show", "huge", "--json").json["files"] == 3
    assert [part.exists() for part in split] == [way != "--move"] * 3


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [(0, 3, "not its first"), (1, 1, "big-00002-of-00003.gguf is missing")],
)
def test_a_split_model_comes_whole_or_not_at_all(
    hearth, models, split, missing, code, said
) -> None:
    split[missing].unlink()
    result = hearth("import", str(split[0].parent))
    assert result.code == code and said in result.err
    assert names(models) == ["tiny.gguf"]


def test_an_import_that_breaks_off_leaves_nothing(models, new) -> None:
    plan = plan_adoption(new, Library(models))

    def stop(done_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adopt(plan, stop)
    assert names(models) == ["tiny.gguf"] and new.exists()


def test_what_a_killed_import_left_goes_with_the_next(models, new) -> None:
    gone = models / ".import-999999999-ab12"
    gone.mkdir()
    (gone / "half.gguf").write_bytes(b"GGUF")
    adopt(plan_adoption(new, Library(models)))
    assert names(models) == ["new.gguf", "tiny.gguf"]


def test_a_file_that_changes_meanwhile_is_not_taken(models, new) -> None:
    plan = plan_adoption(new, Library(models))
    before = new.read_bytes()

    def grow(done_bytes: int) -> None:
        if new.stat().st_size == len(before):
            new.write_bytes(before + b"more")

    with pytest.raises(ImportRefused, match="changed"):
        adopt(plan, grow)
    assert names(models) == ["tiny.gguf"]


def test_a_full_disk_is_noticed_before_the_first_byte(models, new, monkeypatch) -> None:
    room = shutil.disk_usage(models)._replace(free=1000)
    monkeypatch.setattr(adopting.shutil, "disk_usage", lambda path: room)
    with pytest.raises(HearthError) as caught:
        plan_adoption(new, Library(models))
    assert caught.value.data["free_bytes"] == 1000
    assert plan_adoption(new, Library(models), "link").size_bytes == new.stat().st_size
    assert plan_adoption(new, Library(models), "move").way == "move"
