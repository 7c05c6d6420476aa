"""A download whose process is killed, by bytes that arrived and by what it does with files: it goes
on from where it was, and its file is absent or exact. A power cut is not simulated; what is synced
when is in `PartFile`.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downloading import LIMITS, MODEL, REPO, SIZE, put
from hearth.app.library import download_job
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.download import Limits
from hearth.app.library.download_part import kept_ranges
from hearth.app.library.hub import Download, Hub
from hub_server import HubServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

_KILLED_AT_AN_OPERATION = """
import os, signal, sys
left, folder = int(sys.argv[1]), sys.argv[2]
EVENTS = {"open", "os.rename", "os.remove", "os.symlink", "os.mkdir"}
def look(event, arguments):
    global left
    if event in EVENTS and any(str(argument).startswith(folder) for argument in arguments):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
from hearth.app.jobs.child import serve
from hearth.app.library.download_job import work
serve(work)
"""


class Child:
    """A process that downloads, and what it tells."""

    def __init__(
        self, download: Download, cache: Path, limits: Limits, operation: int | None = None
    ) -> None:
        arguments = ["-m", "hearth.app.jobs.child", download_job.__name__, "work"]
        if operation is not None:
            arguments = ["-c", _KILLED_AT_AN_OPERATION, str(operation), str(cache)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        question = download_job.question(download, cache, hub=Hub(), limits=limits)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """What it told until it ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        lines = [json.loads(line) for line in self.process.stdout if line.endswith(b"\n")]
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        return lines

    @property
    def was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL


class Gate:
    """Lets the stand-in send so many bytes, and no more until it is opened again."""

    def __init__(self, hub: HubServer) -> None:
        self._hub = hub
        self._open = threading.Event()
        self._open.set()
        self._most = sys.maxsize
        self.reached = threading.Event()
        hub.on_sent = self._sent

    def allow(self, more_bytes: int) -> None:
        """From now on `more_bytes`, and a piece more for each connection."""
        self.reached.clear()
        self._open.clear()
        self._most = self._hub.sent_bytes + more_bytes

    def open(self) -> None:
        self._most = sys.maxsize
        self._open.set()

    def _sent(self, total: int) -> None:
        if total >= self._most:
            self.reached.set()
            self._open.wait()


@pytest.fixture
def gate(hub: HubServer) -> Iterator[Gate]:
    gate = Gate(hub)
    yield gate
    gate.open()


def kept_bytes(download: Download, cache: Path) -> int:
    """What is on the disk for sure of the model's file."""
    (file,) = (file for file in download.files if file.path == "model.gguf")
    place = RepositoryCache(cache, REPO)
    if place.blob(file.etag).exists():
        return file.size_bytes
    return kept_ranges(place, file).total


def wait_until_kept(download: Download, cache: Path, least: int) -> int:
    """Wait until `least` bytes are on the disk for sure; how many are, if that does not happen."""
    give_up = time.monotonic() + 20
    while (kept := kept_bytes(download, cache)) < least and time.monotonic() < give_up:
        time.sleep(0.005)
    return kept


def assert_absent_or_exact(download: Download, cache: Path, model: bytes) -> None:
    place = RepositoryCache(cache, REPO)
    for file in download.files:
        expected = model if file.path == "model.gguf" else b'{"a": 1}\n'
        for path in (place.blob(file.etag), place.file(download.commit, file.path)):
            assert not path.exists() or path.read_bytes() == expected


def kill_at_bytes(
    hub: HubServer, gate: Gate, cache: Path, model: bytes, limits: Limits, points: int
) -> int:
    """Kill downloads of `model` at `points` random bytes; returns the most that one lost.

    Every other point is at once, the rest once the disk has what it must have.
    """
    draw = random.Random(len(model) + points)
    bound = limits.sync_bytes + 2 * limits.connections * 65_536
    download = put(hub, {"model.gguf": model, "config.json": b'{"a": 1}\n'})
    most_lost = killed = 0
    for point in range(points):
        folder = cache / str(point // 5)
        before = kept_bytes(download, folder)
        more = draw.randrange(max(min(len(model) - before, len(model) // 3), 1))
        gate.allow(more)
        child = Child(download, folder, limits)
        reached = gate.reached.wait(20)
        if reached and point % 2:
            kept = wait_until_kept(download, folder, before + more - bound)
            assert kept >= before + more - bound
        child.process.kill()
        told = [line["progress"]["done_bytes"] for line in child.end() if "progress" in line]
        gate.open()
        killed += child.was_killed
        kept = kept_bytes(download, folder)
        assert kept >= before
        most_lost = max(most_lost, max([*told, 0]) - kept)
        assert_absent_or_exact(download, folder, model)
    assert killed == points
    for folder in cache.iterdir():
        hub.wait_until_quiet()
        before, asked = kept_bytes(download, folder), hub.sent_bytes
        child = Child(download, folder, limits)
        assert "done" in child.end()[-1]
        assert hub.sent_bytes - asked <= len(model) - before + 100
        assert kept_bytes(download, folder) == len(model)
        assert_absent_or_exact(download, folder, model)
    return most_lost


def test_killed_at_some_bytes_it_goes_on(hub: HubServer, gate: Gate, cache: Path) -> None:
    lost = kill_at_bytes(hub, gate, cache, MODEL, LIMITS, points=5)
    assert lost <= 2 * LIMITS.sync_bytes + LIMITS.connections * 65_536


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_a_hundred_bytes_it_loses_at_most_32_mb(
    hub: HubServer, gate: Gate, cache: Path
) -> None:
    model = random.Random(1).randbytes(60_000_000)
    limits = Limits(reserve_bytes=0)
    assert 2 * limits.sync_bytes + limits.connections * 2 * 65_536 < 32_000_000
    assert kill_at_bytes(hub, gate, cache, model, limits, points=100) <= 32_000_000


def kill_at_operation(hub: HubServer, cache: Path, operation: int) -> bool:
    """Kill a download at its `operation`-th opening, renaming, linking or removing of a file, and
    let another finish it. False if there are not so many.
    """
    download = put(hub)
    child = Child(download, cache, LIMITS, operation)
    child.end()
    assert_absent_or_exact(download, cache, MODEL)
    if not child.was_killed:
        return False
    child = Child(download, cache, LIMITS)
    assert "done" in child.end()[-1]
    assert kept_bytes(download, cache) == SIZE
    assert_absent_or_exact(download, cache, MODEL)
    left = {path.name for path in (RepositoryCache(cache, REPO).folder / "blobs").iterdir()}
    assert left == {file.etag for file in download.files}
    return True


@pytest.mark.parametrize("operation", [9, 14, 17])
def test_killed_among_its_files_it_goes_on(hub: HubServer, cache: Path, operation: int) -> None:
    assert kill_at_operation(hub, cache, operation)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_each_operation_it_goes_on(hub: HubServer, cache: Path) -> None:
    operation = 0
    while kill_at_operation(hub, cache / str(operation), operation):
        operation += 1
    assert operation > 20
