"""One download: whole, resumed, broken, wrong, on a full disk, and what the token sees of it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from downloading import LIMITS, MODEL, REPO, SIZE, Watched, fetch, put
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.download import Downloader, discard_parts
from hearth.app.library.errors import (
    DiskFull,
    DownloadCorrupt,
    GatedRepository,
    HubUnreachable,
    RepositoryChanged,
    UnsafeName,
)
from hearth.app.library.hub import Download, Hub, RepositoryFile
from hearth.backends.machine.lock import LockFile
from hub_server import Fault, HubServer


def names_in(cache: Path) -> set[str]:
    """What lies among the contents of the one repository."""
    return {path.name for path in (RepositoryCache(cache, REPO).folder / "blobs").iterdir()}


def model_of(download: Download) -> RepositoryFile:
    return next(file for file in download.files if file.path == "model.gguf")


def test_a_repository_arrives_whole(hub: HubServer, cache: Path) -> None:
    watched = Watched()
    download = put(hub)
    snapshot = fetch(download, cache, watched)
    assert (snapshot / "model.gguf").read_bytes() == MODEL
    assert (snapshot / "config.json").read_bytes() == b'{"a": 1}\n'
    assert names_in(cache) == {file.etag for file in download.files}
    assert watched.told[-1]["total_bytes"] == download.size_bytes
    assert max(values["done_bytes"] for values in watched.told) == download.size_bytes
    assert {values["state"] for values in watched.told} == {"downloading", "checking"}


def test_each_byte_is_asked_for_once_in_several_ranges(hub: HubServer, cache: Path) -> None:
    fetch(put(hub), cache)
    asked = sorted(request.range or (0, 0) for request in hub.contents_asked("model.gguf"))
    assert asked[0][0] == 0 and asked[-1][1] == SIZE and len(asked) == 8
    assert all(before[1] == after[0] for before, after in pairwise(asked))


def test_what_is_there_is_not_asked_for_again(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    fetch(download, cache)
    asked = len(hub.requests)
    fetch(download, cache)
    assert len(hub.requests) == asked


def test_an_empty_file_and_a_folder_are_no_trouble(hub: HubServer, cache: Path) -> None:
    snapshot = fetch(put(hub, {"sub folder/ä.gguf": MODEL[:1000], "empty.txt": b""}), cache)
    assert (snapshot / "sub folder" / "ä.gguf").read_bytes() == MODEL[:1000]
    assert (snapshot / "empty.txt").read_bytes() == b""


def test_a_cancelled_download_goes_on_from_where_it_was(hub: HubServer, cache: Path) -> None:
    download = put(hub)

    async def cancelled() -> int:
        def stop_halfway(values: dict[str, Any]) -> None:
            if values["done_bytes"] > SIZE // 2:
                running.cancel()

        watched = Watched(stop_halfway)
        downloader = Downloader(download, cache, hub.url, watched.progress, LIMITS)
        running = asyncio.create_task(downloader.run())
        with pytest.raises(asyncio.CancelledError):
            await running
        return int(watched.told[-1]["done_bytes"])

    reached = asyncio.run(cancelled())
    watched = Watched()
    fetch(download, cache, watched)
    assert watched.told[0]["done_bytes"] == reached
    assert sum(request.sent_bytes for request in hub.contents_asked("model.gguf")) < 2 * SIZE


@pytest.mark.parametrize("at", [0, 1, SIZE // 3, SIZE - 1])
def test_connections_that_break_are_taken_up_again(hub: HubServer, cache: Path, at: int) -> None:
    download = put(hub)
    hub.faults = [Fault("break", "model.gguf", at=at, times=2)]
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


def test_a_connection_that_stalls_is_given_up(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    hub.faults = [Fault("stall", "model.gguf", at=SIZE // 6)]
    snapshot = fetch(download, cache, limits=replace(LIMITS, stall_s=0.3))
    assert (snapshot / "model.gguf").read_bytes() == MODEL


@pytest.mark.parametrize("host", ["hub", "blobs"])
def test_a_server_in_trouble_is_asked_again(hub: HubServer, cache: Path, host: Any) -> None:
    download = put(hub)
    hub.faults = [Fault("status", "model.gguf", status=status, host=host) for status in (503, 429)]
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


def test_an_address_that_ran_out_is_replaced(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    hub.faults = [Fault("status", "model.gguf", status=403)]
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


def test_a_connection_that_only_breaks_is_an_error_that_keeps_progress(
    hub: HubServer, cache: Path
) -> None:
    download = put(hub)
    hub.faults = [Fault("break", "model.gguf", at=SIZE // 4, times=1000)]
    with pytest.raises(HubUnreachable, match="in a row"):
        fetch(download, cache, limits=replace(LIMITS, connections=1))
    hub.faults = []
    watched = Watched()
    assert (fetch(download, cache, watched) / "model.gguf").read_bytes() == MODEL
    assert watched.told[0]["done_bytes"] >= SIZE // 4


def test_a_server_without_ranges_is_enough(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    hub.faults = [Fault("whole", "model.gguf", times=1000)]
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


@pytest.mark.parametrize("path", ["model.gguf", "config.json"])
def test_a_flipped_byte_is_noticed_and_fetched_again(
    hub: HubServer, cache: Path, path: str
) -> None:
    download = put(hub)
    host: Any = "blobs" if path == "model.gguf" else "hub"
    hub.faults = [Fault("flip", path, at=3, host=host)]
    if path == "model.gguf":
        hub.faults[0].at = 0
    watched = Watched()
    snapshot = fetch(download, cache, watched, replace(LIMITS, connections=1))
    assert (snapshot / path).read_bytes() == hub.repos[REPO].files[path]


def test_a_byte_that_is_always_wrong_is_an_error_and_leaves_nothing(
    hub: HubServer, cache: Path
) -> None:
    download = put(hub)
    hub.faults = [Fault("flip", "model.gguf", at=SIZE - 1, times=1000)]
    with pytest.raises(DownloadCorrupt, match="wrong checksum, twice"):
        fetch(download, cache)
    assert not any(name.startswith(model_of(download).etag) for name in names_in(cache))
    assert not RepositoryCache(cache, REPO).is_there(download.commit, "model.gguf")


def test_a_byte_that_changed_on_the_disk_is_noticed(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    hub.faults = [Fault("break", "model.gguf", at=SIZE * 2 // 3, times=1000)]
    with pytest.raises(HubUnreachable):
        fetch(download, cache)
    part = RepositoryCache(cache, REPO).part(model_of(download).etag)
    with part.open("r+b") as file:
        file.seek(10)
        file.write(bytes([MODEL[10] ^ 1]))
    hub.faults = []
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("kind", ["short", "other"])
def test_another_content_than_was_listed_begins_anew_once(
    hub: HubServer, cache: Path, kind: Any, times: int
) -> None:
    download = put(hub)
    host: Any = "blobs" if kind == "short" else "hub"
    hub.faults = [Fault(kind, "model.gguf", at=SIZE // 2, times=times, host=host)]
    if times == 1:
        assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL
    else:
        with pytest.raises(RepositoryChanged):
            fetch(download, cache)


def test_the_whole_download_must_fit_before_it_begins(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    asked = len(hub.requests)
    with pytest.raises(DiskFull) as caught:
        fetch(download, cache, free=lambda _: download.size_bytes - 1)
    assert caught.value.data["needed_bytes"] == download.size_bytes
    assert len(hub.requests) == asked


def test_a_disk_that_fills_up_pauses_and_keeps_what_arrived(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    free = iter([10 * SIZE, 10 * SIZE, 10])
    limits = replace(LIMITS, reserve_bytes=1000)
    with pytest.raises(DiskFull, match="what was downloaded is kept"):
        fetch(download, cache, limits=limits, free=lambda _: next(free, 10))
    watched = Watched()
    assert (fetch(download, cache, watched) / "model.gguf").read_bytes() == MODEL
    assert watched.told[0]["done_bytes"] >= LIMITS.sync_bytes


def test_no_space_left_is_a_full_disk(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = put(hub)
    synced = 0
    real = os.fsync

    def fill_up(fd: int) -> None:
        nonlocal synced
        synced += 1
        if synced > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(DiskFull):
            fetch(download, cache)
    watched = Watched()
    assert (fetch(download, cache, watched) / "model.gguf").read_bytes() == MODEL
    assert watched.told[0]["done_bytes"] > 0


def test_the_token_goes_to_the_hub_alone(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.tokens = {"hf_good"}
    fetch(put(hub, gated=True), cache)
    seen = {(request.host, request.headers.get("authorization")) for request in hub.requests}
    assert seen == {("hub", "Bearer hf_good"), ("blobs", None)}
    assert not any(
        "hf_good" in str(request.headers) for request in hub.contents_asked("model.gguf")
    )


@pytest.mark.parametrize("token", ["", "hf_stranger"])
def test_a_gated_repository_says_where_its_licence_is(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(GatedRepository) as caught:
        fetch(put(hub, gated=True), cache)
    assert caught.value.data["url"] == f"{hub.url}/{REPO}" and REPO in caught.value.hint


def test_a_name_that_leads_out_is_refused_before_anything_is_written(
    hub: HubServer, cache: Path
) -> None:
    good = put(hub)
    bad = replace(good, files=(replace(good.files[0], path="../../../../x.gguf"),))
    with pytest.raises(UnsafeName):
        fetch(bad, cache)
    assert not cache.exists()


def test_a_second_process_waits_for_the_first(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    place = RepositoryCache(cache, REPO)
    path = place.lock(model_of(download).etag)
    path.parent.mkdir(parents=True)
    lock = LockFile(path)
    assert lock.acquire()

    def free_it(values: dict[str, Any]) -> None:
        if values["state"] == "waiting":
            lock.release()

    watched = Watched(free_it)
    assert (fetch(download, cache, watched) / "model.gguf").read_bytes() == MODEL
    assert watched.told[0]["state"] == "waiting" or watched.told[1]["state"] == "waiting"


def test_the_lock_is_the_one_that_huggingface_hub_takes(hub: HubServer, cache: Path) -> None:
    from huggingface_hub.utils import WeakFileLock

    download = put(hub)
    path = RepositoryCache(cache, REPO).lock(model_of(download).etag)
    path.parent.mkdir(parents=True)
    with WeakFileLock(path):
        assert not LockFile(path).acquire()


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 50, b"torn 1 2", b"1 2 00000000\n"])
def test_a_damaged_journal_costs_progress_and_nothing_else(
    hub: HubServer, cache: Path, damage: bytes
) -> None:
    download = put(hub)
    hub.faults = [Fault("break", "model.gguf", at=SIZE * 2 // 3, times=1000)]
    with pytest.raises(HubUnreachable):
        fetch(download, cache)
    journal = RepositoryCache(cache, REPO).journal(model_of(download).etag)
    kept = journal.read_bytes()
    journal.write_bytes(kept[: len(kept) // 2] + damage if damage else b"")
    with pytest.raises(HubUnreachable):
        fetch(download, cache)
    journal.write_bytes(journal.read_bytes() + damage)
    hub.faults = []
    assert (fetch(download, cache) / "model.gguf").read_bytes() == MODEL


def test_parts_can_be_thrown_away(hub: HubServer, cache: Path) -> None:
    download = put(hub)
    hub.faults = [Fault("break", "model.gguf", at=SIZE * 2 // 3, times=1000)]
    with pytest.raises(HubUnreachable):
        fetch(download, cache)
    lock = LockFile(RepositoryCache(cache, REPO).lock(model_of(download).etag))
    assert lock.acquire()
    discard_parts(download, cache)
    assert any(name.endswith(".part") for name in names_in(cache))
    lock.release()
    discard_parts(download, cache)
    assert not any(".part" in name for name in names_in(cache))


def test_a_download_survives_being_written_down(hub: HubServer) -> None:
    download = put(hub)
    assert msgspec.convert(json.loads(json.dumps(asdict(download))), Download) == download
    assert Hub().repository(REPO).files == download.files
