"""A stand-in for the Hub, and a cache of its own, for every test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import HubServer, only_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The stand-in is the Hub."""
    with only_hub(monkeypatch, tmp_path) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The shared cache's folder; it does not exist yet."""
    return tmp_path / "cache"
