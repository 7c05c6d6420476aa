"""The queue of downloads: its order, what pauses and resumes, and that it outlives its process."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from async_tests import in_loop
from downloading import MODEL, put
from hearth.app.jobs.child import Stopped
from hearth.app.library import downloads
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.downloads import Downloads, Rate
from hearth.app.library.errors import (
    DiskFull,
    DownloadCorrupt,
    DownloadNotFound,
    FileTrouble,
    HubUnreachable,
    OfflineError,
    QueueHeld,
    QueueUnreadable,
)
from hearth.app.library.hub import Download, Hub, RepositoryFile
from hearth.backends.errors import HearthError
from hub_server import HubServer


def a_download(number: int, size: int = 1000) -> Download:
    file = RepositoryFile("m.gguf", size, f"{number:064x}", f"{number:040x}")
    return Download(f"a/model-{number}", "main", f"{number:040x}", (file,))


class ScriptedJob:
    """Ends when it is told how, or to stop."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.repo_id = question["download"]["repo_id"]
        self.is_offline = question["offline"]
        self.outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def tell(self, done_bytes: int) -> None:
        self._told.put_nowait(
            {"state": "downloading", "file": "m.gguf", "done_bytes": done_bytes, "total_bytes": 0}
        )

    def end(self, error: HearthError | None = None) -> None:
        self._told.put_nowait(None)
        if error is None:
            self.outcome.set_result({})
        else:
            self.outcome.set_exception(error)

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        while (values := await self._told.get()) is not None:
            yield values

    async def result(self) -> dict[str, Any]:
        return await self.outcome

    def stop(self) -> None:
        if not self.outcome.done():
            self.end(Stopped("The job was stopped."))

    async def close(self) -> None:
        pass


class Desk:
    """A queue that runs, with scripted jobs and a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.jobs: list[ScriptedJob] = []
        self.errors: list[HearthError] = []
        self.now = 100.0
        self.file = folder / "downloads.json"
        self.cache = folder / "cache"
        self.queue = self.open()

    def open(self) -> Downloads:
        return Downloads(
            self.file, self.cache, Hub(), start=self._start, retry_s=60, clock=lambda: self.now
        )

    async def _start(self, _: object, question: dict[str, Any], *__: object) -> ScriptedJob:
        self.jobs.append(ScriptedJob(question))
        return self.jobs[-1]

    @property
    def states(self) -> list[str]:
        return [item.state for item in self.queue.items()]

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def at_desk(folder: Path) -> AsyncIterator[Desk]:
    """A desk whose queue runs."""
    desk = Desk(folder)
    running = asyncio.create_task(desk.queue.run(desk.errors.append))
    await desk.settle()
    try:
        yield desk
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        desk.queue.close()


@in_loop
async def test_two_run_at_a_time_in_order(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        for number in range(3):
            await desk.queue.add(a_download(number), f"name {number}")
        await desk.settle()
        assert desk.states == ["running", "running", "waiting"]
        desk.jobs[0].end()
        await desk.settle()
        assert desk.states == ["done", "running", "running"]
        assert [job.repo_id for job in desk.jobs] == ["a/model-0", "a/model-1", "a/model-2"]


@in_loop
async def test_the_same_download_is_queued_once(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        first = await desk.queue.add(a_download(1), "x")
        assert await desk.queue.add(a_download(1), "x") == first
        assert len(desk.queue.items()) == 1


@in_loop
async def test_a_paused_download_makes_room_and_can_be_resumed(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        idents = [await desk.queue.add(a_download(number), "x") for number in range(3)]
        await desk.settle()
        await desk.queue.pause(idents[0])
        await desk.settle()
        assert desk.states == ["paused", "running", "running"]
        await desk.queue.resume(idents[0])
        assert desk.states == ["waiting", "running", "running"]
        desk.jobs[1].end()
        await desk.settle()
        assert desk.states == ["running", "done", "running"]


@in_loop
async def test_a_download_can_be_paused_before_its_first_step(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        adding = asyncio.create_task(desk.queue.add(a_download(1), "x"))
        while desk.states != ["running"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await desk.queue.pause(desk.queue.items()[0].id)
        assert desk.states == ["paused"]
        await adding


@in_loop
async def test_the_order_can_be_changed(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        idents = [await desk.queue.add(a_download(number), "x") for number in range(4)]
        await desk.settle()
        await desk.queue.move(idents[3], 0)
        desk.jobs[0].end()
        await desk.settle()
        assert desk.jobs[-1].repo_id == "a/model-3"


@in_loop
async def test_cancelling_takes_it_out(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        ident = await desk.queue.add(a_download(1), "x")
        await desk.settle()
        await desk.queue.cancel(ident)
        assert desk.queue.items() == ()
        with pytest.raises(DownloadNotFound):
            await desk.queue.resume(ident)


@in_loop
async def test_a_full_disk_is_told_and_cancelling_frees_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with at_desk(tmp_path) as desk:
        download = a_download(1)
        ident = await desk.queue.add(download, "x", quantize="Q8_0")
        await desk.settle()
        part = RepositoryCache(desk.cache, download.repo_id).part(download.files[0].etag)
        part.parent.mkdir(parents=True)
        part.write_bytes(b"half of it")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            for change in (
                desk.queue.add(a_download(2), "y"),
                desk.queue.move(ident, 1),
                desk.queue.pause(ident),
                desk.queue.resume(ident),
                desk.queue.end_quantize(ident),
                desk.queue.cancel(ident),
            ):
                with pytest.raises(FileTrouble, match="No space left on device"):
                    await change
        assert desk.jobs[0].outcome.done() and not part.exists()
        assert [item.name for item in desk.queue.items()] == ["y"]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("cache", "downloads.json", "downloads.lock")
    }


@in_loop
async def test_a_folder_of_the_queue_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileTrouble, match="cannot be written"):
        await Desk(tmp_path / "file" / "folder").queue.add(a_download(1), "x")


@in_loop
async def test_what_runs_is_paused_when_the_hub_becomes_offline(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.queue.add(a_download(1), "x")
        await desk.settle()
        desk.queue.use(Hub(offline=True))
        await desk.settle()
        assert [job.is_offline for job in desk.jobs] == [False, True]
        desk.jobs[1].end(OfflineError("Downloading needs a connection."))
        await desk.settle()
        assert desk.states == ["paused"]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (DiskFull("full", "make room"), "paused"),
        (DownloadCorrupt("bad"), "failed"),
        (HubUnreachable("gone"), "waiting"),
    ],
)
@in_loop
async def test_what_an_error_does(tmp_path: Path, error: HearthError, state: str) -> None:
    async with at_desk(tmp_path) as desk:
        ident = await desk.queue.add(a_download(1), "x")
        await desk.settle()
        desk.jobs[0].end(error)
        await desk.settle()
        (item,) = desk.queue.items()
        assert item.state == state and item.error is not None
        assert item.error.message == error.message and len(desk.jobs) == 1
        await desk.queue.resume(ident)
        await desk.settle()
        assert desk.states == ["running"] and desk.queue.items()[0].error is None


@in_loop
async def test_a_lost_connection_is_tried_again_later(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.queue.add(a_download(1), "x")
        await desk.settle()
        desk.jobs[0].end(HubUnreachable("gone"))
        await desk.settle()
        desk.now += 61
        await desk.queue.add(a_download(2), "y")
        await desk.settle()
        assert [job.repo_id for job in desk.jobs] == ["a/model-1", "a/model-1", "a/model-2"]


@in_loop
async def test_rate_and_time_left_are_shown(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.queue.add(a_download(1, size=1000), "x")
        await desk.settle()
        for done in (100, 200, 300):
            desk.now += 1
            desk.jobs[0].tell(done)
            await desk.settle()
        (item,) = desk.queue.items()
        assert item.bytes_per_s == pytest.approx(100) and item.eta_s == pytest.approx(7)
        assert item.done_bytes == 300 and item.file == "m.gguf"


def test_a_rate_looks_at_the_last_seconds() -> None:
    now = 0.0
    rate = Rate(window_s=10, clock=lambda: now)
    assert rate.bytes_per_s is None and rate.eta_s(5) is None
    for second in range(60):
        now = float(second)
        rate.note(second * 10 if second < 40 else 400 + (second - 40) * 100)
    assert rate.bytes_per_s == pytest.approx(100)
    rate.note(0)
    assert rate.bytes_per_s is None


@in_loop
async def test_the_queue_outlives_its_process(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        for number in range(3):
            await desk.queue.add(a_download(number), f"name {number}")
        await desk.settle()
        await desk.queue.pause(desk.queue.items()[1].id)
        desk.jobs[0].tell(500)
        await desk.settle()
    items = Desk(tmp_path).queue.items()
    assert [item.name for item in items] == ["name 0", "name 1", "name 2"]
    assert [item.state for item in items] == ["waiting", "paused", "waiting"]
    assert items[0].done_bytes == 500


@in_loop
async def test_only_one_process_keeps_the_queue(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.queue.add(a_download(1), "x")
        other = desk.open()
        assert [item.name for item in other.items()] == ["x"]
        with pytest.raises(QueueHeld):
            await other.add(a_download(2), "y")


@in_loop
async def test_another_process_takes_the_queue_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_TAKE_OVER_S", 0.001)
    first, second = Desk(tmp_path), Desk(tmp_path)
    one = asyncio.create_task(first.queue.run(first.errors.append))
    await first.settle()
    other = asyncio.create_task(second.queue.run(second.errors.append))
    await first.queue.add(a_download(1), "x")
    await first.settle()
    first.now += 10
    first.jobs[0].tell(500)
    async with asyncio.timeout(10):
        while [item.done_bytes for item in second.queue.items()] != [500]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert second.states == ["running"] and not second.jobs
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    assert not second.jobs  # The first one still has the lock.
    first.queue.close()
    async with asyncio.timeout(10):
        while not second.jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    second.jobs[0].end()
    await second.settle()
    assert second.states == ["done"]
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    second.queue.close()


@in_loop
async def test_what_a_killed_process_downloaded_is_continued(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.queue.add(a_download(1), "x")
        await desk.settle()
        async with asyncio.timeout(10):
            while '"running"' not in (document := desk.file.read_text()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / "downloads.json").write_text(document)
    async with at_desk(tmp_path / "killed") as desk:
        assert desk.states == ["running"] and len(desk.jobs) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1}', "[" * 100_000])
@in_loop
async def test_a_damaged_queue_is_said_and_goes_on_when_it_is_removed(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_TAKE_OVER_S", 0)
    (tmp_path / "downloads.json").write_text(text)
    async with at_desk(tmp_path) as desk:
        with pytest.raises(QueueUnreadable):
            desk.queue.items()
        desk.file.unlink()
        await desk.queue.add(a_download(1), "x")
        await desk.settle()
        assert desk.states == ["running"]
        assert [type(error) for error in desk.errors] == [QueueUnreadable]


@in_loop
async def test_a_real_download_goes_through_the_queue(hub: HubServer, tmp_path: Path) -> None:
    download = put(hub)
    bad = replace(download, repo_id="no/such", commit="f" * 40, files=download.files[:1])
    queue = Downloads(tmp_path / "state" / "downloads.json", tmp_path / "cache", Hub())
    await queue.add(download, "good")
    await queue.add(bad, "bad")
    running = asyncio.create_task(queue.run(lambda _: None))
    async with asyncio.timeout(60):
        while not {item.state for item in queue.items()} <= {"done", "failed"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    good, wrong = queue.items()
    assert good.state == "done" and good.done_bytes == download.size_bytes
    assert wrong.state == "failed"
    assert wrong.error is not None and wrong.error.code == "repository_not_found"
    (file,) = (tmp_path / "cache").glob("models--*/snapshots/*/model.gguf")
    assert file.read_bytes() == MODEL
