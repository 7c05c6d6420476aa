"""The application over a scripted host (`fake_host`), with "tiny" as the opened model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpoints import Endpoint
from fake_host import FakeHost
from hearth.app.chosen import with_settings
from hearth.app.host_connection import HostConnection
from hearth.app.library.local import FoundModel, Library
from hearth.app.library.manager import ModelManager
from hearth.app.server.application import build
from hearth.app.server.catalog import Catalog
from hearth.app.server.security import Policy
from hearth.app.server.services import Services
from hearth.app.settings import Setting, Settings
from hearth.backends.host import client
from hosts import place_in


@pytest.fixture
def endpoint(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Endpoint]:
    """Makes an endpoint over a script. `flags` are settings, `ping_s` and `patience_s` as in
    `Services`; with `manage`, clients may manage the models in `tmp_path / "models"`.
    """

    def make(
        *answers: list[dict[str, Any]],
        policy: Policy | None = None,
        flags: dict[str, Any] | None = None,
        times: dict[str, float] | None = None,
        host_kind: type[FakeHost] = FakeHost,
        manage: bool = False,
        **script: Any,
    ) -> Endpoint:
        host = host_kind({"answers": list(answers), **script})
        monkeypatch.setattr(client, "HostClient", host)
        settings = Settings(tmp_path / "settings.toml").with_flags(
            {name: Setting(value, "test") for name, value in (flags or {}).items()}
        )
        opened = FoundModel("tiny", tiny_model, "path")
        folder = tmp_path / "models"
        catalog = Catalog(Library(folder), opened, lambda found: with_settings(found, settings))
        services = Services(catalog, HostConnection(place_in(tmp_path), 1.0))
        services = replace(services, **(times or {}))
        if manage:
            manager = ModelManager(catalog.index, settings, tmp_path / "hub", tmp_path / "cache")
            services = replace(services, manager=manager)
        return Endpoint(build(services, policy or Policy()), host, catalog)

    return make
