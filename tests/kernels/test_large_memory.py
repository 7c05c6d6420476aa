"""Memory in large pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hearth.kernels.large_memory import LargeMemory, large_empty


def test_it_is_zero_and_of_the_asked_shape() -> None:
    for shape in ((3, 5), (1025, 1031)):
        found = large_empty(shape, torch.bfloat16)
        assert found.shape == shape and found.dtype == torch.bfloat16
        assert not found.any()
        found.fill_(1.0)
        assert found.all()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has or asks none"
)
def test_the_system_may_use_large_pages_for_it() -> None:
    """For private memory: shared memory has them only where the system is configured so."""
    memory, flags = large_empty((4 << 20,), torch.uint8), None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            begin, end = (int(number, 16) for number in first.split("-"))
        elif first == "VmFlags:" and begin <= memory.data_ptr() < end:
            flags = rest
    assert flags is not None and "hg" in flags and "sh" not in flags


def test_small_tensors_share_pages() -> None:
    memory = LargeMemory(together=4 << 20)
    found = [memory.empty(size) for size in (1000, 5, 1 << 20, (2 << 20) - 4096, 64, 5 << 20)]
    for number, one in enumerate(found):
        assert one.data_ptr() % 64 == 0
        one.fill_(number)
    assert all(bool((one == number).all()) for number, one in enumerate(found))
    bases = [one.untyped_storage().data_ptr() for one in found]
    assert len(set(bases[:4])) == 1 and len(set(bases[-2:])) == 2
