"""A stand-in for the Hub, and a cache of its own, for every test that asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import HubServer, hub_server


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The stand-in is the Hub, also for child processes; there is no token and no proxy."""
    import httpx2
    from huggingface_hub import constants, set_async_client_factory, set_client_factory
    from huggingface_hub.utils import _http as defaults
    from huggingface_hub.utils import close_session

    for name in list(os.environ):
        if name.startswith("HF_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "no-tokens"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    # Nothing here speaks TLS, and to read the certificates takes 60 ms each time.
    set_client_factory(lambda: httpx2.Client(verify=False, follow_redirects=True))
    set_async_client_factory(lambda: httpx2.AsyncClient(verify=False, follow_redirects=True))
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
    set_client_factory(defaults.default_client_factory)
    set_async_client_factory(defaults.default_async_client_factory)
    close_session()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The shared cache's folder; it does not exist yet."""
    return tmp_path / "cache"
