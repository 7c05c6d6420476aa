"""The cache that other tools share: they find what was downloaded, and nothing leads out of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from downloading import MODEL, REPO, fetch, put
from hearth.app.library.cache_layout import RepositoryCache, hub_cache
from hearth.app.library.errors import UnsafeName
from hub_server import HubServer

COMMIT, SHA256 = "a" * 40, "b" * 64


def test_huggingface_hub_finds_what_was_downloaded(hub: HubServer, cache: Path) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache

    snapshot = fetch(put(hub), cache)
    found = try_to_load_from_cache(REPO, "model.gguf", cache_dir=cache)
    assert isinstance(found, str) and Path(found) == snapshot / "model.gguf"
    assert Path(found).read_bytes() == MODEL
    report = scan_cache_dir(cache)
    assert not report.warnings
    (repo,) = report.repos
    (revision,) = repo.revisions
    assert repo.repo_id == REPO and revision.refs == {"main"}
    assert {file.file_name for file in revision.files} == {"model.gguf", "config.json"}
    asked = len(hub.contents_asked("model.gguf"))
    hf_hub_download(REPO, "model.gguf", cache_dir=cache, endpoint=hub.url)
    hf_hub_download(REPO, "model.gguf", cache_dir=cache, local_files_only=True)
    assert len(hub.contents_asked("model.gguf")) == asked


def test_what_huggingface_hub_downloaded_is_not_fetched_again(hub: HubServer, cache: Path) -> None:
    from huggingface_hub import hf_hub_download

    download = put(hub)
    hf_hub_download(REPO, "model.gguf", cache_dir=cache, endpoint=hub.url)
    asked = len(hub.contents_asked("model.gguf"))
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL
    assert len(hub.contents_asked("model.gguf")) == asked


def test_a_part_does_not_disturb_other_tools(hub: HubServer, cache: Path) -> None:
    from huggingface_hub import scan_cache_dir

    fetch(put(hub), cache)
    place = RepositoryCache(cache, REPO)
    place.part(SHA256).write_bytes(b"x")
    place.journal(SHA256).write_bytes(b"y")
    assert not scan_cache_dir(cache).warnings


def test_without_links_a_file_has_two_names(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import scan_cache_dir

    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    file = fetch(put(hub), cache) / "model.gguf"
    assert file.read_bytes() == MODEL and not file.is_symlink() and file.stat().st_nlink == 2
    assert not scan_cache_dir(cache).warnings


def test_without_links_of_any_kind_the_file_lies_in_the_snapshot(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links on this file system")

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr(os, "link", refuse)
    download = put(hub)
    file = fetch(download, cache) / "model.gguf"
    assert file.read_bytes() == MODEL and file.stat().st_nlink == 1 and not file.is_symlink()
    asked = len(hub.requests)
    fetch(download, cache)
    assert len(hub.requests) == asked


def test_a_link_to_a_removed_content_is_made_anew(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    file = fetch(download, cache) / "model.gguf"
    file.resolve().unlink()
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/./b", "x\0y", "a/.."]
)
def test_a_files_name_cannot_lead_out_of_its_snapshot(tmp_path: Path, path: str) -> None:
    with pytest.raises(UnsafeName):
        RepositoryCache(tmp_path, REPO).file(COMMIT, path)


@pytest.mark.parametrize(
    "path",
    [
        "x" * 251 + ".gguf",
        "ü" * 126 + ".gguf",
        f"{'folder/' * 20}{'y' * 256}/model.gguf",
        f"{'long/' * 900}model.gguf",
        "a\nb.gguf",
        "a\x1b]0;b.gguf",
        "a\x7f.gguf",
        "\udc80.gguf",
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_first_byte(
    hub: HubServer, cache: Path, path: str
) -> None:
    found = put(hub)
    files = (replace(found.files[0], path=path), *found.files[1:])
    with pytest.raises(UnsafeName):
        fetch(replace(found, files=files), cache)
    assert hub.sent_bytes == 0 and not cache.exists()


def test_the_longest_names_are_taken(tmp_path: Path) -> None:
    place = RepositoryCache(tmp_path, REPO)
    for path in ("x" * 250 + ".gguf", "ü" * 125 + ".gguf", "a b/ünïcode 模型.gguf"):
        assert place.file(COMMIT, path).name == path.rpartition("/")[2]


def test_neither_can_other_names(tmp_path: Path) -> None:
    place = RepositoryCache(tmp_path, REPO)
    for name in ("..", "../x", "a/b/c", "/a", "a/..", "a--b/c", "", f"a/{'b' * 250}"):
        with pytest.raises(UnsafeName):
            RepositoryCache(tmp_path, name)
    for etag in ("../x", "", "B" * 64, "b" * 63):
        with pytest.raises(UnsafeName):
            place.blob(etag)
    with pytest.raises(UnsafeName):
        place.snapshot("main")
    for revision in ("../../x", "/x", "a//b"):
        with pytest.raises(UnsafeName):
            place.set_revision(revision, COMMIT)
    assert not list(tmp_path.iterdir())


def test_the_cache_is_found_as_huggingface_hub_finds_it() -> None:
    assert hub_cache({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}) == Path("/c")
    assert hub_cache({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/h/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub_cache({}) == Path.home() / ".cache" / "huggingface" / "hub"
    home = {"HEARTH_HOME": "/hearth", "XDG_CACHE_HOME": "/x"}
    assert hub_cache(home) == Path("/hearth/cache/huggingface/hub")
    assert hub_cache({**home, "HF_HOME": "/h"}) == Path("/h/hub")
    assert hub_cache({**home, "HF_HUB_CACHE": "/c"}) == Path("/c")
