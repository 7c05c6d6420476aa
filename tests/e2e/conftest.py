"""The bundled model in its forms, and a host of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from guide_forms import derive, guide_path
from hearth.backends.host.client import HostPlace
from hosts import place_in


@pytest.fixture(scope="session")
def guide() -> Path:
    """The committed f16 file."""
    return guide_path()


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms")


@pytest.fixture(scope="session")
def guide_f32(forms: Path) -> Path:
    return derive("F32", forms)


@pytest.fixture(scope="session")
def guide_q8(forms: Path) -> Path:
    return derive("Q8_0", forms)


@pytest.fixture
def place(tmp_path: Path) -> HostPlace:
    return place_in(tmp_path)
