"""The app makes no network connection: on every screen, and during a chat."""

from __future__ import annotations

import socket

import pytest

from async_tests import in_loop
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import SCREENS
from pilots import ask, opened, until_shown
from sockets import guard


@in_loop
async def test_no_screen_opens_a_socket(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    guard(tried.append, monkeypatch.setattr)
    async with opened(services, (120, 40)) as (app, pilot):
        await ask(pilot, "does it work?")
        await until_shown(pilot, "It works.")
        for name in (*SCREENS, "chat"):
            app.switch_mode(name)
            await pilot.pause(0.3)
        for key in ("f1", "escape", "ctrl+o", "escape", "ctrl+f", "escape", "ctrl+p", "escape"):
            await pilot.press(key)
            await pilot.pause()
    assert tried == []


def test_the_guard_sees_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    guard(tried.append, monkeypatch.setattr)
    with socket.socket() as asking:
        asking.settimeout(0.01)
        asking.connect_ex(("127.0.0.1", 9))
    with pytest.raises(OSError):  # noqa: PT011 - which one is up to the resolver
        socket.create_connection(("name.invalid", 9), 0.01)
    assert [one.split()[0] for one in tried] == ["connect_ex", "getaddrinfo"]


def test_a_search_is_refused_when_offline(services: Services) -> None:
    from hearth.backends.errors import HearthError

    with pytest.raises(HearthError, match="offline"):
        services.hub.search("x")
