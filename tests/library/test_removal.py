"""Deleting models: what it frees is said before, and nothing of anybody else's is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hearth.app.library.local import FoundModel, Library
from hearth.app.library.removal import NotRemovable, plan_removal, remove
from hearth.app.library.sources import Source

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")

NEW, OLD = "c" * 40, "0" * 40
REPO = "models--org--m"


def file(path: Path, size: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF".ljust(size, b"."))
    return path


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "library").mkdir()
    sources = [
        Source("huggingface", tmp_path / "hub"),
        Source("lmstudio", tmp_path / "lmstudio"),
        Source("llama.cpp", tmp_path / "llama"),
        Source("folder", tmp_path / "folder"),
    ]
    return Library(tmp_path / "library", tmp_path / "bundled", sources=sources)


def cached(library: Library, name: str, commit: str = NEW, content: str = "b1") -> Path:
    repository = library.sources[0].folder / REPO
    blob = repository / "blobs" / content
    if not blob.exists():
        file(blob)
    link = repository / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    file(repository / "refs" / "main").write_text(NEW)
    return link


def by_name(library: Library, name: str) -> FoundModel:
    return next(model for model in library.found() if model.name == name)


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_file_of_the_library_and_the_folder_it_was_alone_in(library: Library) -> None:
    path = file(library.folder / "sub" / "m.gguf")
    file(library.folder / "other.gguf")
    plan = plan_removal(by_name(library, "m"), library)
    assert (plan.paths, plan.frees_bytes, plan.keeps) == ((path,), 100, ())
    assert path.exists()
    remove(plan)
    assert everything(library.folder) == {"other.gguf"}


def test_what_was_written_about_it_goes_too(library: Library) -> None:
    file(library.folder / "m.gguf")
    file(library.folder / "m.gguf.json", size=10)
    file(library.folder / "m.gguf.eval.json", size=5)
    file(library.folder / "m.medusa.safetensors", size=20)
    file(library.folder / "other.gguf.json")
    removal = plan_removal(by_name(library, "m"), library)
    assert removal.frees_bytes == 135
    remove(removal)
    assert everything(library.folder) == {"other.gguf.json"}


@pytest.mark.parametrize(
    ("content", "is_manifest"), [('{"recipe": {}, "result": {}}', True), ('{"result": 1}', False)]
)
def test_of_a_folder_only_a_manifest_goes(
    library: Library, content: str, is_manifest: bool
) -> None:
    for name in ("config.json", "model.safetensors"):
        file(library.folder / "m" / name)
    file(library.folder / "m.json").write_text(content)
    remove(plan_removal(by_name(library, "m"), library))
    assert everything(library.folder) == (set() if is_manifest else {"m.json"})


def test_all_parts_of_a_split_model_go(library: Library) -> None:
    for part in (1, 2, 3):
        file(library.folder / f"m-0000{part}-of-00003.gguf")
    file(library.folder / "m-00007-of-00003.gguf")
    plan = plan_removal(by_name(library, "m"), library)
    assert (len(plan.paths), plan.frees_bytes) == (3, 300)
    remove(plan)
    assert everything(library.folder) == {"m-00007-of-00003.gguf"}


def test_of_a_link_only_the_link_goes(library: Library, tmp_path: Path) -> None:
    original = file(tmp_path / "elsewhere" / "original.gguf")
    (library.folder / "m.gguf").symlink_to(original)
    plan = plan_removal(by_name(library, "m"), library)
    assert plan.frees_bytes == 0
    assert str(original) in plan.keeps[0]
    remove(plan)
    assert original.exists() and everything(library.folder) == set()


def test_what_has_another_name_frees_nothing(library: Library, tmp_path: Path) -> None:
    path = file(library.folder / "m.gguf")
    (tmp_path / "second.gguf").hardlink_to(path)
    plan = plan_removal(by_name(library, "m"), library)
    assert plan.frees_bytes == 0 and "another name" in plan.keeps[0]


def test_the_last_of_a_repository_takes_the_repository_along(library: Library) -> None:
    link = cached(library, "m.gguf")
    hub = library.sources[0].folder
    file(hub / REPO / ".no_exist" / NEW / "config.json")
    blob = hub / REPO / "blobs" / "b1"
    plan = plan_removal(by_name(library, "m"), library)
    assert (set(plan.paths), plan.frees_bytes, plan.keeps) == ({link, blob}, 100, ())
    remove(plan)
    assert everything(hub) == set()


def test_other_files_of_the_repository_stay(library: Library) -> None:
    cached(library, "m.gguf")
    cached(library, "other.gguf", content="b2")
    remove(plan_removal(by_name(library, "m"), library))
    assert everything(library.sources[0].folder / REPO) == {
        *("blobs", "blobs/b2", "refs", "refs/main"),
        *("snapshots", f"snapshots/{NEW}", f"snapshots/{NEW}/other.gguf"),
    }


def test_a_blob_that_another_revision_uses_stays(library: Library) -> None:
    cached(library, "m.gguf", NEW)
    older = cached(library, "m.gguf", OLD)
    plan = plan_removal(by_name(library, "m"), library)
    assert plan.frees_bytes == 0 and "another revision" in plan.keeps[0]
    remove(plan)
    assert older.exists()
    assert everything(library.sources[0].folder / REPO) == {
        *("blobs", "blobs/b1", "snapshots", f"snapshots/{OLD}", f"snapshots/{OLD}/m.gguf"),
    }


def test_the_last_of_several_removals_frees_what_they_share(library: Library) -> None:
    for commit, content in ((NEW, "b1"), (OLD, "b2")):
        cached(library, "m-00001-of-00002.gguf", commit, content)
        cached(library, "m-00002-of-00002.gguf", commit, "shared")
    one, other = library.found()
    first = plan_removal(one, library)
    second = plan_removal(other, library, first.paths)
    assert (first.frees_bytes, second.frees_bytes, second.keeps) == (100, 200, ())
    for plan in (first, second):
        remove(plan)
    assert everything(library.sources[0].folder) == set()


def test_a_snapshot_without_links_has_files_or_second_names(library: Library) -> None:
    snapshot = library.sources[0].folder / REPO / "snapshots" / NEW
    file(snapshot / "plain.gguf")
    blob = file(library.sources[0].folder / REPO / "blobs" / "b1", 50)
    (snapshot / "second.gguf").hardlink_to(blob)
    plain = plan_removal(by_name(library, "plain"), library)
    assert (plain.frees_bytes, len(plain.paths)) == (100, 1)
    second = plan_removal(by_name(library, "second"), library)
    assert (second.frees_bytes, set(second.paths)) == (50, {snapshot / "second.gguf", blob})


@pytest.mark.parametrize(
    ("place", "name", "who"),
    [
        ("lmstudio/org/repo/m.gguf", "m", "LM Studio"),
        ("llama/m.gguf", "m", "llama.cpp"),
        ("folder/m.gguf", "m", "Delete the file yourself"),
        ("bundled/guide.f16.gguf", "guide", "comes with Hearth"),
    ],
)
def test_what_is_not_hearths_is_refused_with_whose_it_is(
    library: Library, tmp_path: Path, place: str, name: str, who: str
) -> None:
    path = file(tmp_path / place)
    with pytest.raises(NotRemovable) as caught:
        plan_removal(by_name(library, name), library)
    assert who in str(caught.value)
    assert path.exists()


def test_a_model_of_ollama_is_deleted_by_ollama(library: Library, tmp_path: Path) -> None:
    model = FoundModel("qwen3:0.6b", file(tmp_path / "blobs" / "sha256-1"), "ollama")
    with pytest.raises(NotRemovable) as caught:
        plan_removal(model, library)
    assert "ollama rm qwen3:0.6b" in caught.value.hint


def test_nothing_outside_of_the_library_is_deleted(library: Library, tmp_path: Path) -> None:
    outside = file(tmp_path / "outside" / "m.gguf")
    (library.folder / "way-out").symlink_to(outside.parent)
    with pytest.raises(NotRemovable, match="outside of it"):
        plan_removal(by_name(library, "m"), library)
    lie = FoundModel("m", outside, "library")
    with pytest.raises(NotRemovable, match="outside of it"):
        plan_removal(lie, library)
    assert outside.exists()
