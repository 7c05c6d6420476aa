"""The terminal app over scripted models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hearth.app.chats.store import ChatStore
from hearth.app.library.downloads import Downloads
from hearth.app.library.hub import Hub
from hearth.app.library.local import Library
from hearth.app.paths import find_paths
from hearth.app.settings import load_settings
from hearth.app.tui.services import Services
from scripted import Script, ScriptedHost


@pytest.fixture
def host() -> ScriptedHost:
    """Models that say that they work; a test changes `scripts["guide"]`."""
    return ScriptedHost({"guide": Script(), "guide-draft": Script("I am the draft.")})


@pytest.fixture
def services(tmp_path: Path, host: ScriptedHost) -> Iterator[Services]:
    """Services in a folder of their own, with an empty history and the bundled models."""
    paths = find_paths({"HEARTH_HOME": str(tmp_path / "hearth")})
    paths.data.mkdir(parents=True)
    settings = load_settings(paths.settings_file, {})
    with closing(ChatStore(paths.chats_file)) as chats:
        yield Services(
            paths,
            settings,
            Library(paths.models),
            chats,
            host,
            Hub(offline=True),
            Downloads(paths.downloads_file, tmp_path / "hub", Hub(offline=True)),
            lambda: load_settings(paths.settings_file, {}),
        )
