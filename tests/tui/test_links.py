"""Links in answers: never opened by themselves, and shown with their real host."""

from __future__ import annotations

import pytest

from async_tests import in_loop
from hearth.app.tui.links import host_of
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.slab import LinkAsked
from hearth.backends.errors import InvalidParameter
from pilots import chat_of, opened, until, until_shown


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com/a?b=c", "example.com"),
        ("http://localhost:4242/v1", "localhost:4242"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://\u0430pple.com", "xn--pple-43d.com"),
    ],
)
def test_the_host_is_told(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://",
        "https://apple.com@evil.example/",
        "//example.com",
        "http://[",
        "http://a:99999/",
        "mailto:a@b",
        "",
    ],
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameter):
        host_of(url)


@in_loop
async def test_a_link_is_opened_on_a_persons_word_alone(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(services) as (app, pilot):
        gone_to: list[str] = []
        monkeypatch.setattr(app, "open_url", lambda url, **_: gone_to.append(url))
        chat_of(pilot).post_message(LinkAsked("https://example.com/path"))
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await until_shown(pilot, "example.com")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Confirm))
        assert gone_to == []
        chat_of(pilot).post_message(LinkAsked("https://example.com/path"))
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: gone_to == ["https://example.com/path"])
