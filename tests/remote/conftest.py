"""An endpoint as that of tests/server, whose model "tiny" a second Hearth serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endpoints import Endpoint
from fake_host import FakeHost
from hearth.app.chosen import with_settings
from hearth.app.host_connection import HostConnection
from hearth.app.library.local import FoundModel, Library
from hearth.app.server.application import build
from hearth.app.server.catalog import Catalog
from hearth.app.server.security import Policy
from hearth.app.server.services import Services
from hearth.app.settings import Setting, Settings
from hearth.backends.host import client
from hearth.backends.remote.server import RemoteServer
from hosts import place_in
from second_hearth import ForEachLoop, Settled, served


@pytest.fixture
def endpoint(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Endpoint]]:
    """Makes an endpoint as the fixture of tests/server does; the script is the second Hearth's, all
    else is the first one's.
    """

    def services(found: FoundModel, settings: Settings, hosts: HostConnection) -> Services:
        library = Library(tmp_path / "models")
        return Services(Catalog(library, found, lambda one: with_settings(one, settings)), hosts)

    with ExitStack() as running:

        def make(
            *answers: list[dict[str, Any]],
            policy: Policy | None = None,
            flags: dict[str, Any] | None = None,
            times: dict[str, float] | None = None,
            **script: Any,
        ) -> Endpoint:
            host = FakeHost({"answers": list(answers), **script})
            monkeypatch.setattr(client, "HostClient", host)
            file = tmp_path / "settings.toml"
            second = services(
                FoundModel("tiny", tiny_model, "path"),
                Settings(file),
                HostConnection(place_in(tmp_path), 1.0),
            )
            url = running.enter_context(served(build(second, Policy()), second.state))
            there = RemoteServer("tiny", url, model="tiny", server="hearth", timeout_s=60.0)
            typed = {name: Setting(value, "test") for name, value in (flags or {}).items()}
            settings = replace(Settings(file, remotes={"tiny": there}), flags=typed)
            hosts = ForEachLoop(place_in(tmp_path), 1.0, None, settings.remotes)
            first = services(FoundModel("tiny", Path(url), "remote", there), settings, hosts)
            first = replace(first, **(times or {}))
            settled: Any = Settled(host, lambda: second.state.busy > 0)
            return Endpoint(build(first, policy or Policy()), settled, first.catalog)

        yield make
