"""Threads and memory: measured on the machine, within the limits of the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.backends.machine import memory, threads
from hearth.backends.machine.threads import SPINS, candidates, measure_threads


class Machine:
    """A clock that steps advance: each takes `cost[threads]` seconds."""

    def __init__(self, cost: dict[int, float]) -> None:
        self.now = 0.0
        self.cost = cost
        self.steps = 0

    def step(self, count: int) -> None:
        self.now += self.cost[count]
        self.steps += 1

    def measure(self, counts: list[int], budget_s: float = 0.15) -> int:
        return measure_threads(self.step, counts, budget_s=budget_s, clock=lambda: self.now).threads


def test_the_fastest_count_is_chosen() -> None:
    assert Machine({4: 0.003, 2: 0.001, 8: 0.004}).measure([4, 2, 8]) == 2


def test_a_small_gain_does_not_move_the_default() -> None:
    assert Machine({4: 0.001, 3: 0.00097}).measure([4, 3]) == 4


def test_a_slow_model_keeps_the_default_within_the_budget() -> None:
    machine = Machine({4: 0.2, 2: 0.01})
    assert machine.measure([4, 2]) == 4
    assert machine.now <= 0.2


def test_a_single_choice_is_not_measured() -> None:
    machine = Machine({1: 1.0})
    assert machine.measure([1]) == 1
    assert machine.steps == 0


def test_candidates_stay_within_the_machine() -> None:
    assert candidates(1, 1) == [1]
    assert candidates(8, 16) == [8, 4, 7, 16]
    assert candidates(2, 2) == [2, 1]


def test_a_group_quota_bounds_the_threads(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("150000 100000\n")
    assert threads._cgroup_quota(quota) == 2
    quota.write_text("max 100000\n")
    assert threads._cgroup_quota(quota) is None
    assert threads._cgroup_quota(tmp_path / "none") is None
    assert 1 <= threads.usable_cores() <= threads.usable_threads()


def test_a_group_limit_bounds_the_memory(tmp_path: Path) -> None:
    free = memory.available_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200000\nactive_file 100000\n")
    assert memory.available_bytes(tmp_path) == 600000 < free
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes(tmp_path) > 600000


ALLOCATED = """
import contextlib, ctypes, psutil, sys
from hearth.backends.machine import memory
libc, size = ctypes.CDLL(None), int(sys.argv[2])
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
resident = lambda: psutil.Process().memory_info().rss
for option in (getattr(memory, sys.argv[1]), contextlib.nullcontext):
    before = resident()
    with option():
        block = libc.malloc(size)
        allocated = resident()
        ctypes.memset(block, 1, size)
        written = resident()
        libc.free(block)
        print(allocated - before, written - resident())
"""


def allocated_and_freed(option: str, size: int) -> list[tuple[int, int]]:
    """Bytes of memory that a process takes when it allocates `size` bytes, and bytes that it
    releases when it frees them: with `option`, and without. This is a separate process, whose heap
    has no room of that size.
    """
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this C library has no mallopt")
    command = [sys.executable, "-c", ALLOCATED, option, str(size)]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [(int(taken), int(given)) for taken, given in map(str.split, told.splitlines())]


def test_what_is_allocated_touched_is_in_memory_before_it_is_used() -> None:
    size = 64 << 20
    (inside, _), (without, _) = allocated_and_freed("touched_allocations", size)
    assert without < size // 2 < inside


def test_what_is_freed_of_separate_allocations_goes_back_to_the_system() -> None:
    size = 16 << 20
    (_, inside), (_, afterwards) = allocated_and_freed("separate_allocations", size)
    assert afterwards < size // 2 < inside


def test_threads_that_wait_for_others_soon_sleep() -> None:
    """libgomp prints its settings when it is loaded; other threading libraries print nothing."""
    load = "from hearth.backends.llamacpp.lib import load_library; load_library()"
    for given, expected in (({}, SPINS), ({"GOMP_SPINCOUNT": "77"}, "77")):
        environ = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
        environ |= {"OMP_DISPLAY_ENV": "VERBOSE", **given}
        done = subprocess.run(
            [sys.executable, "-c", load], env=environ, capture_output=True, text=True, check=True
        )
        assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr or "GOMP_" not in done.stderr
