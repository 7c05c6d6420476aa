"""What the driver says of a card, asked of a driver that is written down."""
# ruff: noqa: N802 - the names are NVIDIA's

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hearth.backends.machine import gpus

GB = 10**9


class Driver:
    """Stands for the driver: functions that give 0 when they do what they are asked."""

    def __init__(self, cards: int = 1, total: int = 80 * GB, initialised: int = 0) -> None:
        self.cards, self.total, self.initialised = cards, total, initialised

    def cuInit(self, flags: int) -> int:
        return self.initialised

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.cards
        return 0

    def cuDeviceGet(self, card: Any, ordinal: int) -> int:
        card._obj.value = ordinal
        return 0

    def cuDeviceTotalMem_v2(self, total: Any, card: Any) -> int:
        total._obj.value = self.total
        return 0

    def cuDeviceGetPCIBusId(self, place: Any, size: int, card: Any) -> int:
        place.value = f"0000:0{card.value}:00.0".encode()
        return 0


class Management:
    """Stands for NVML."""

    def __init__(self, free: int) -> None:
        self.free, self.opened = free, 0

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, place: Any, handle: Any) -> int:
        handle._obj.value = 7
        return 0 if place.value == b"0000:00:00.0" else 6

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.free = self.free
        return 0 if handle.value == 7 else 2


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The libraries of the driver that are installed, by a part of their names."""
    found: dict[str, object] = {}

    def load(name: str) -> object:
        for part, library in found.items():
            if part in name:
                return library
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    return found


def test_without_a_driver_or_a_card_there_is_no_memory(libraries: dict[str, object]) -> None:
    assert gpus.card_free_bytes() is None
    for driver in (Driver(cards=0), Driver(initialised=100), object()):
        libraries["cuda"] = driver
        assert gpus.card_free_bytes() is None


def test_the_free_memory_of_the_first_card(libraries: dict[str, object]) -> None:
    libraries["cuda"] = Driver(cards=2)
    assert gpus.card_free_bytes() == 80 * GB
    management = libraries["ml"] = Management(61 * GB)
    assert gpus.card_free_bytes() == 61 * GB
    assert management.opened == 0
    assert gpus.card_free_bytes(1) == 80 * GB  # Of another place on the bus.
    assert gpus.card_free_bytes(2) is None


def test_of_a_part_of_a_card_no_more_than_the_part(libraries: dict[str, object]) -> None:
    libraries["cuda"], libraries["ml"] = Driver(total=10 * GB), Management(61 * GB)
    assert gpus.card_free_bytes() == 10 * GB
