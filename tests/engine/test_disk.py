"""Prefixes that outlive the process: written after steps, found by another process, or unused."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from fake_pages import PagedMemory
from fake_runner import FakeRunner
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv import disk_files
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.disk_files import DiskPart, KvFolder, owner_of, read_part
from hearth.backends.engine.restoring import Restoring
from sequence_memory import Memory
from speakers import Listener, at_rest, generation

MIB = 1 << 20
CHAT = [*range(100, 170)]
"""More than four parts of 16 tokens."""


class Disk:
    """A folder, and a disk tier over it; `restart` gives the tier of the next process."""

    def __init__(self, path: Path, budget: int = MIB) -> None:
        self.path = path / "kv"
        self.budget = budget
        self.now = 0.0
        self.restart()

    def restart(self, key: bytes = b"model") -> None:
        self.folder = KvFolder(self.path, self.budget)
        self.tier = DiskTier(self.folder, key, "guide", self.budget, lambda: self.now)
        self.came = threading.Event()
        self.tier.start(self.came.set)

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("*/*/*.kv"))

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.glob("*/*/*"))

    def chats(self, memory: type[Memory | PagedMemory] = Memory, **changes) -> Chats:
        """An empty KV cache."""
        return Chats(self, memory(disk=self.tier, slots=2, pool=400, **changes))


class Chats:
    """The calls of a scheduler on a KV cache over a disk."""

    def __init__(self, disk: Disk, memory: Memory | PagedMemory) -> None:
        self.disk = disk
        self.memory = memory
        self.cache = memory.cache

    def ask(self, tokens, session="chat", slot=0, namespace=b"") -> int:
        """Compute `tokens` and release them, and finish the pending writes; returns how many of
        them did not have to be computed.
        """
        found = self.open(tokens, session, slot, namespace)
        self.memory.compute(slot, tokens[found:])
        self.check(slot, tokens)
        self.end(slot)
        return found

    def open(self, tokens, session="chat", slot=0, namespace=b"") -> int:
        found = self.cache.open(slot, tokens, namespace, session)
        assert self.cache.reserve(slot, len(tokens))
        while self.cache.arriving(slot):
            if self.cache.is_waiting:
                assert self.disk.came.wait(10)
                self.disk.came.clear()
            found += self.cache.tend().get(slot, 0)
        self.check(slot, tokens[:found])
        return found

    def check(self, slot, tokens) -> None:
        if isinstance(self.memory, Memory):
            assert self.memory.held(slot) == list(tokens)
        else:
            assert self.memory.holds(slot, tokens)

    def end(self, slot=0) -> None:
        self.cache.release(slot, keep=True)
        self.write()

    def write(self) -> None:
        while self.cache.is_writing:
            self.cache.tend()
            self.disk.tier.flush()
        self.disk.tier.flush()

    @property
    def stats(self):
        return self.cache.stats()


@pytest.fixture
def disk(tmp_path) -> Disk:
    return Disk(tmp_path)


def found_after_restart(disk: Disk, tokens=(*CHAT, 1), kind=Memory, key=b"model", **ask) -> int:
    disk.restart(key)
    return disk.chats(kind).open([*tokens], **ask)


# ---- what is found


def test_there_is_memory_for_the_chat_that_was_used_last(disk, kind):
    chats = disk.chats(kind)
    chats.ask(CHAT)
    chats.ask([*range(120)], session="longer")
    time.sleep(0.01)
    chats.ask([*CHAT, *range(20)])
    disk.restart()
    assert disk.tier.latest_tokens == 90
    small = {"allocated": 10, "grows_after": 3} if kind is Memory else {"start": 2}
    cache = disk.chats(kind, **small).cache
    had = cache.stats().allocated_tokens
    cache.expect(90)
    assert had < 90 <= cache.stats().allocated_tokens
    assert Disk(disk.path / "other").tier.latest_tokens == 0


def test_what_is_restored_ahead_is_there_for_the_request(tmp_path):
    """The chat was written when the engine was closed, right after the answer."""
    runner = FakeRunner(pool=512, context=512)
    tokens = [(k * 11) % 97 for k in range(150)]

    def engine():
        tier = DiskTier(KvFolder(tmp_path / "kv", MIB), b"model", "guide", MIB)
        return Engine(runner, disk=tier)

    def run(engine, *work):
        engine.submit(*work)
        until = time.monotonic() + 20
        while not work[0].done and time.monotonic() < until:
            engine.run_once()

    first = engine()
    run(first, generation(1, tokens, runner, tokens=3, session="chat")[0])
    first.close()
    first.run()
    assert first.ended.is_set()
    runner = FakeRunner(pool=512, context=512)
    second = engine()
    heard = Listener()
    run(second, Restoring(2, [*tokens, 5, 6, 7], heard))
    second.run_once()
    assert [event.reason for event in heard.events] == ["stop"] and at_rest(second, runner)
    computed, read = second.stats().computed_tokens, second.stats().disk_read_tokens
    assert read >= 128 and computed == 1, "nothing is prefilled but for one token"
    asked, answered = generation(3, [*tokens, 5, 6, 7], runner, tokens=3)
    run(second, asked)
    second.run_once()
    assert asked.cached >= read and second.stats().disk_read_tokens == read
    assert answered.ids == runner.greedy([*tokens, 5, 6, 7], 3)


def test_what_is_restored_again_is_what_is_found_then():
    """The request was preempted while its prompt was restored, and fewer tokens arrived than
    expected.
    """
    heard = Listener()
    restoring = Restoring(2, [*range(200)], heard)
    restoring.start(0, 0, 80)
    assert restoring.pending == 81
    restoring.computed = 30
    restoring.on_arrived()
    assert restoring.pending == 1
    restoring.stop()
    restoring.start(1, 0, 152)
    restoring.computed = 120
    assert restoring.pending == 33
    restoring.computed = 152
    restoring.on_arrived()
    assert restoring.pending == 1
    assert restoring.stats(0, 0.0).generated_tokens == 0


def test_a_chat_is_found_after_a_restart(disk, kind):
    assert disk.chats(kind).ask(CHAT) == 0
    disk.restart()
    chats = disk.chats(kind)
    assert chats.ask([*CHAT, 1, 2, 3]) == 70
    assert chats.stats.disk_read_tokens == 70
    assert (chats.stats.disk_tokens, chats.stats.disk_bytes) == (73, disk.tier.nbytes)


def test_a_whole_state_is_found_and_two_of_a_chat_stay(disk):
    chats = disk.chats(kind="recurrent", state_bytes=64)
    for length in (20, 40, 60):
        chats.ask(CHAT[:length])
    assert [disk_files.read_part(path).end for path in disk.files] == [40, 60]
    disk.restart()
    chats = disk.chats(kind="recurrent", state_bytes=64)
    assert chats.open([*CHAT[:50], 1]) == 40
    assert chats.open(CHAT, slot=1) == 60


def test_a_chat_that_goes_another_way_is_found_as_far_as_it_is_the_same(disk, kind):
    chats = disk.chats(kind)
    other = [*CHAT[:37], *range(900, 950)]
    chats.ask(CHAT)
    chats.ask(other)
    assert found_after_restart(disk, [*CHAT, 1], kind) == 70
    assert found_after_restart(disk, [*other, 1], kind) == 87
    assert found_after_restart(disk, [*CHAT[:30], 1], kind) == 30


def test_few_tokens_are_not_read(disk):
    disk.chats().ask(CHAT[:15])
    assert found_after_restart(disk, CHAT) == 0


def test_another_chat_finds_it_too(disk, kind):
    disk.chats(kind).ask(CHAT)
    assert found_after_restart(disk, kind=kind, session="other") == 70


def test_what_the_cache_has_already_is_not_read(disk, kind):
    disk.chats(kind).ask(CHAT)
    disk.restart()
    chats = disk.chats(kind)
    chats.cache.open(0, CHAT[:40])
    chats.cache.reserve(0, 40)
    chats.memory.compute(0, CHAT[:40])
    chats.cache.release(0, keep=True)
    assert chats.ask([*CHAT, 1]) == 70
    assert chats.stats.disk_read_tokens == 30


@pytest.mark.parametrize("change", [{"key": b"other"}, {"namespace": b"adapter"}])
def test_another_model_or_namespace_finds_nothing(disk, change):
    disk.chats().ask(CHAT)
    assert found_after_restart(disk, **change) == 0


def test_a_long_scan_of_the_folder_stops_nobody(disk, monkeypatch):
    """Tokens that are computed meanwhile are written when the scan is over."""
    listing, scan = threading.Event(), KvFolder.scan

    def slow(folder, model):
        assert listing.wait(20)
        return scan(folder, model)

    disk.chats().ask(CHAT[:30])
    monkeypatch.setattr(KvFolder, "scan", slow)
    disk.restart()
    disk.now = 60.0
    chats = disk.chats()
    assert chats.open(CHAT) == 0
    chats.memory.compute(0, CHAT)
    chats.cache.release(0, keep=True)
    assert not chats.cache.is_writing
    disk.came.clear()
    listing.set()
    assert disk.came.wait(10)
    chats.write()
    assert chats.stats.disk_tokens == 70


# ---- what is written


def test_only_new_tokens_are_written(disk, kind):
    chats = disk.chats(kind)
    tokens = CHAT[:10]
    for turn in range(1, 10):
        chats.ask(tokens)
        assert chats.stats.disk_tokens == len(tokens), "no token is written twice"
        tokens = [*tokens, *range(1000 * turn, 1000 * turn + 9)]
    starts = [(part.start, part.end) for part in map(disk_files.read_part, disk.files)]
    starts.sort()
    assert all(one[1] == two[0] for one, two in pairwise(starts))


def test_a_running_sequence_is_written_part_by_part(disk, kind):
    chats = disk.chats(kind)
    chats.open(CHAT)
    chats.memory.compute(0, CHAT[:40])
    chats.cache.tend()
    disk.tier.flush()
    assert chats.stats.disk_tokens == 32
    chats.memory.compute(0, CHAT[40:])
    chats.end()
    assert chats.stats.disk_tokens == 70


def test_a_chat_is_written_no_further_than_it_went(disk, kind):
    """The longer text of another chat keeps its own tokens."""
    chats = disk.chats(kind)
    chats.ask(CHAT, session="alice")
    chats.ask(CHAT[:40], session="bob")
    ends: dict[str, list[int]] = {}
    for path in disk.files:
        ends.setdefault(path.parent.name, []).append(read_part(path).end)
    assert max(ends[owner_of("alice")]) == 70
    assert max(ends.get(owner_of("bob"), [0])) <= 40


def test_without_a_session_nothing_is_written(disk):
    disk.chats().ask(CHAT, session=None)
    assert disk.files == []


def test_no_more_is_copied_than_there_is_time_for(disk):
    chats = disk.chats()
    chats.memory.part_s = 0.015
    chats.open(CHAT)
    chats.memory.compute(0, CHAT)
    chats.cache.release(0, keep=True)
    chats.cache.tend()
    assert chats.memory.copied == [16, 16]
    chats.cache.tend()
    assert chats.memory.copied == [16, 16, 16]
    chats.write()
    assert chats.stats.disk_tokens == 70


def test_within_an_hour_no_more_is_written_than_the_budget(tmp_path):
    disk = Disk(tmp_path, 6000)
    chats = disk.chats()
    for turn in range(20):
        chats.ask([*range(1000 * turn, 1000 * turn + 40)])
    written = chats.stats.disk_written_bytes
    assert 5000 <= written <= 8000
    disk.now = 1800.0
    chats.ask([*range(40)])
    assert written < chats.stats.disk_written_bytes


def test_files_are_for_their_owner_alone(disk):
    disk.chats().ask(CHAT)
    assert {path.stat().st_mode & 0o777 for path in disk.files} == {0o600}
    folders = [disk.path, *disk.path.glob("*/"), *disk.path.glob("*/*/")]
    assert {path.stat().st_mode & 0o777 for path in folders if path.is_dir()} == {0o700}


# ---- what makes way


def test_the_budget_holds_and_the_least_recently_used_makes_way(tmp_path):
    disk = Disk(tmp_path, 9000)
    chats = disk.chats()
    for turn in range(12):
        disk.now += 3600.0
        chats.ask([*range(1000 * turn, 1000 * turn + 64)], session=f"chat {turn}")
        assert disk.nbytes <= disk.budget
        assert chats.stats.disk_bytes <= disk.nbytes
    assert found_after_restart(disk, [*range(11000, 11064), 1]) == 64
    assert found_after_restart(disk, [*range(64), 1]) == 0
    lengths = [found_after_restart(disk, [*range(n, n + 64), 1]) for n in range(0, 12000, 1000)]
    assert sum(length == 64 for length in lengths) >= 2


def test_a_part_beyond_the_budget_evicts_nothing(disk):
    disk.chats().ask(CHAT)
    before = disk.files
    path = disk.files[0].with_name("large.kv")
    part = DiskPart(path, b"", b"", 0, array("i"), b"", MIB + 1)
    with pytest.raises(OSError, match="more than the budget"):
        disk.folder.write(part, memoryview(bytes(MIB + 1)))
    assert disk.files == before


def test_a_deleted_chat_leaves_nothing_and_is_not_written_again(disk):
    chats = disk.chats()
    chats.ask(CHAT)
    chats.ask([7] * 40, session="other")
    chats.open([*CHAT, 1])
    KvFolder(disk.path, MIB).delete("chat")
    chats.memory.compute(0, [1, *range(300, 310)])
    chats.end()
    assert chats.stats.disk_tokens == 40
    assert found_after_restart(disk) == 0
    assert found_after_restart(disk, [7] * 41) == 40


def test_what_is_cleared_is_gone_and_more_is_written_later(disk):
    chats = disk.chats()
    chats.ask(CHAT)
    chats.cache.clear()
    chats.cache.clear_disk()
    disk.tier.flush()
    assert disk.files == [] and chats.stats.disk_bytes == 0
    chats.ask(CHAT)
    assert chats.stats.disk_tokens == 70
    assert KvFolder(disk.path, MIB).clear() > 0
    chats.ask([5] * 40)
    chats.ask([6] * 40)
    assert found_after_restart(disk, [6] * 41) == 40


def test_what_is_cleared_during_the_scan_is_gone(disk, monkeypatch):
    listing, scan = threading.Event(), KvFolder.scan

    def slow(folder, model):
        found = scan(folder, model)
        assert listing.wait(20)
        return found

    disk.chats().ask(CHAT)
    monkeypatch.setattr(KvFolder, "scan", slow)
    disk.restart()
    disk.tier.clear()
    listing.set()
    disk.tier.flush()
    assert disk.files == []
    assert (disk.tier.nbytes, disk.tier.tokens) == (0, 0)


@pytest.mark.parametrize("by", ["another process", "this one"])
def test_a_chat_goes_on_after_all_was_cleared_and_another_began(disk, kind, by):
    chats = disk.chats(kind)
    chats.ask(CHAT)
    chats.ask([5] * 40, session="other")
    tokens = [*CHAT, *range(20)]
    found = chats.open(tokens)
    if by == "this one":
        chats.cache.clear_disk()
    else:
        assert KvFolder(disk.path, MIB).clear() > 0
    chats.ask([6] * 40, session="new", slot=1)
    chats.memory.compute(0, tokens[found:])
    chats.end()
    chats.ask([*tokens, *range(30)])
    assert found_after_restart(disk, [*tokens, *range(30), 1], kind=kind) == 120
    assert found_after_restart(disk, [6] * 41, kind=kind) == 40


# ---- what cannot be used


def test_one_flipped_byte_is_never_used(disk, kind):
    disk.chats(kind).ask(CHAT)
    whole = {path: path.read_bytes() for path in disk.files}
    picked = random.Random(1)
    for path in whole:
        part = disk_files.read_part(path)
        for at in (0, 9, 20, 60, picked.randrange(part.data_at), part.data_at, -1):
            damaged = bytearray(whole[path])
            damaged[at] ^= 1 << picked.randrange(8)
            path.write_bytes(damaged)
            assert found_after_restart(disk, kind=kind) <= part.start + 0
            for other, data in whole.items():
                other.write_bytes(data)
    assert found_after_restart(disk, kind=kind) == 70


def test_a_half_written_file_is_never_used(disk):
    disk.chats().ask(CHAT)
    first = next(path for path in disk.files if path.name.startswith("00000000"))
    data = first.read_bytes()
    for length in (0, 7, 50, 130, len(data) - 1):
        first.write_bytes(data[:length])
        assert found_after_restart(disk) == 0
        assert not first.exists()


def test_a_part_that_went_away_is_computed(disk):
    disk.chats().ask(CHAT)
    disk.restart()
    chats = disk.chats()
    assert chats.stats.disk_tokens == 0 or chats.stats.disk_tokens == 70
    disk.tier.flush()
    sorted(disk.files, key=lambda path: path.name)[2].unlink()
    assert chats.ask([*CHAT, 1]) == 32


def test_what_there_is_no_memory_to_read_is_computed_and_stays(disk, kind, monkeypatch):
    disk.chats(kind).ask(CHAT)
    files = disk.files
    disk.restart()
    chats = disk.chats(kind)

    def unpack(meta, data):
        raise MemoryError

    store = chats.memory.store if kind is Memory else chats.memory.pages
    monkeypatch.setattr(store, "unpack", unpack)
    assert chats.open([*CHAT, 1]) == 0
    assert disk.files == files
    assert found_after_restart(disk, kind=kind) == 70


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_is_left_alone(disk, monkeypatch, code):
    def write(file, data):
        os.pwrite(file, data[:10], 0)
        raise OSError(code, os.strerror(code))

    chats = disk.chats()
    with monkeypatch.context() as patched:
        patched.setattr(disk_files, "_write_all", write)
        chats.ask(CHAT)
        assert chats.stats.disk_tokens == 0 and not [*disk.path.glob("*/*/*")]
    chats.ask(CHAT)
    assert chats.stats.disk_tokens == 0, "it is tried again later only"
    disk.now = 100.0
    assert chats.ask(CHAT) == 69
    assert chats.stats.disk_tokens == 70


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "kv").write_text("a file")
    disk = Disk(tmp_path)
    chats = disk.chats()
    assert chats.ask(CHAT) == 0
    assert chats.ask([*CHAT, 1]) == 70
    assert chats.stats.disk_tokens == 0


# ---- processes that are killed

_WRITER = """
import sys
from array import array
from pathlib import Path
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.disk_files import KvFolder

path, seed, budget = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tier = DiskTier(KvFolder(path, budget), b"model", "guide", 1 << 40)
print("ready", flush=True)
for chat in range(1000):
    session, first = f"{seed} {chat}", 1000 * (1000 * seed + chat)
    tier.begin(session)
    tokens = array("i", range(first, first + 64))
    parent, start = tier.place(session, tokens, b"")
    while start < 64:
        new = tokens[start : start + 16]
        data = memoryview(new.tobytes() * 256)
        parent, start = tier.put(session, parent, start, new, b"meta", data), start + 16
    tier.flush()
"""


@pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_9_while_writing_leaves_nothing_corrupt_and_keeps_the_budget(tmp_path, kills):
    path, budget = tmp_path / "kv", 400_000
    picked = random.Random(3)
    hits = 0
    for seed in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(seed), str(budget)],
            stdout=subprocess.PIPE,
        ) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(picked.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
        sizes = [file.stat().st_size for file in path.glob("*/*/*")]
        assert sum(sizes) <= budget
        folder = KvFolder(path, budget)
        for part in folder.scan(DiskTier(folder, b"model", "guide", budget).model):
            data = bytearray(part.nbytes)
            disk_files.PartData(part).read([memoryview(data)])
            assert bytes(data) == part.tokens.tobytes() * 256
            assert part.tokens[0] % 1000 == part.start
            hits += 1
    assert hits > kills
