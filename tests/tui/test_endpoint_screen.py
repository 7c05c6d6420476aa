"""The endpoint screen: on and off, fields, key, examples, and the last requests."""

import os
import sys
from contextlib import asynccontextmanager

import pytest
from textual.widgets import Checkbox, Input

from async_tests import in_loop
from hearth.app.endpoint_control import Launch
from hearth.app.server.logs import RequestLog
from hearth.app.tui.screens import endpoint
from polling import notices, until
from screen_app import app_on
from screens import text_of

STANDS_IN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("Serving \\x1b[31mguide.", file=sys.stderr, flush=True)
print("http://127.0.0.1:4999/v1", flush=True)
while True:
    time.sleep(0.01)
"""
FAILS = "import sys; sys.exit('error: the port is in use.\\nTake another port: --port 4243.')"


@pytest.fixture
def launched():
    """Host, port and whether a key is required, for each start of the endpoint."""
    return []


@pytest.fixture
def shown(services, monkeypatch, launched):
    """Shows the endpoint screen; `code` replaces hearth serve."""
    monkeypatch.delenv("HEARTH_API_KEY", raising=False)

    @asynccontextmanager
    async def show(code=STANDS_IN, size=(100, 30)):
        def launch(settings, host, port, *, key):
            launched.append((host, port, key))
            return Launch((), dict(os.environ), (sys.executable, "-c", code))

        monkeypatch.setattr(endpoint, "launch", launch)
        app = app_on("endpoint", services)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "Last requests" in text_of(app))
            yield app, pilot
            control = app.screen.control
        assert control.state == "off"

    return show


@in_loop
async def test_it_is_switched_on_and_off_and_ends_with_the_app(shown, launched):
    async with shown() as (app, pilot):
        assert "○ off" in text_of(app)
        await pilot.press("space")
        await until(pilot, lambda: "● on" in text_of(app))
        assert "http://127.0.0.1:4999/v1" in text_of(app)
        await until(pilot, lambda: "Serving ␛[31mguide." in text_of(app))
        await pilot.press("space")
        await until(pilot, lambda: "○ off" in text_of(app))
        await pilot.press("space")
        await until(pilot, lambda: "● on" in text_of(app))
    assert launched == [("127.0.0.1", 4242, False)] * 2


@in_loop
async def test_what_goes_wrong_is_told_with_the_cure(shown):
    async with shown(FAILS) as (app, pilot):
        await pilot.press("space")
        await until(pilot, lambda: "the port is in use. Take another port" in text_of(app))
        assert "○ off" in text_of(app)


@in_loop
async def test_the_fields_are_kept_in_the_settings_and_hold(shown, launched, services):
    async with shown() as (app, pilot):
        port = app.screen.query_one("#serve_port", Input)
        port.focus()
        port.value = "70000"
        await pilot.press("enter")
        await until(pilot, lambda: "from 0 to 65535" in text_of(app))
        port.value = "5000"
        await pilot.press("enter")
        await until(pilot, lambda: services.settings.text("serve_port") == "5000")
        app.screen.query_one("#serve_key", Checkbox).toggle()
        await until(pilot, lambda: services.settings.all()["serve_key"].value is True)
        await until(pilot, lambda: "a key is created" in text_of(app))
        app.screen.query_one("#requests OptionList").focus()
        await pilot.press("space")
        await until(pilot, lambda: "● on" in text_of(app))
    assert launched == [("127.0.0.1", 5000, True)]
    assert "serve_port = 5000" in services.paths.settings_file.read_text()


@in_loop
async def test_the_key_is_hidden_until_it_is_asked_for_and_copied(shown, services):
    services.paths.settings_file.parent.mkdir(parents=True)
    services.paths.settings_file.write_text("serve_key = true\n")
    services.settings = services.reload()
    file = services.paths.api_key_file
    file.parent.mkdir(parents=True)
    async with shown() as (app, pilot):
        await until(pilot, lambda: "a key is created" in text_of(app))
        await pilot.press("k")
        await until(pilot, lambda: "No key to copy" in notices(app))
        assert not app.clipboard
        file.write_text("sesame\n")
        file.chmod(0o600)
        await pilot.press("v", "v")
        await until(pilot, lambda: "key ••••" in text_of(app))
        assert "sesame" not in text_of(app)
        await pilot.press("v")
        await until(pilot, lambda: "key sesame" in text_of(app))
        await pilot.press("k")
        await until(pilot, lambda: app.clipboard == "sesame")
        file.chmod(0o644)
        await pilot.press("k")
        await until(pilot, lambda: "Other users can read" in text_of(app))


@in_loop
async def test_address_and_examples_are_copied(shown):
    async with shown() as (app, pilot):
        await pilot.press("a")
        await until(pilot, lambda: app.clipboard == "http://127.0.0.1:4242/v1")
        await pilot.press("c")
        await until(pilot, lambda: app.clipboard.startswith("curl http://127.0.0.1:4242/v1/chat"))
        await pilot.press("p", "c")
        await until(pilot, lambda: app.clipboard.startswith("from openai import OpenAI"))
        assert "With the openai package" in text_of(app)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@in_loop
async def test_the_last_requests_are_listed(shown, services, width):
    async with shown(size=(width, 30)) as (app, pilot):
        services.paths.log.mkdir(parents=True)
        with RequestLog(services.paths.log / "requests.log", clock=lambda: 0.0) as log:
            log.note("POST", "/v1/chat/completions", 200, 1234.5, model="guide", prompt_tokens=9)
            for method in ("GET", "GET", "POST"):
                log.note(method, "/v1/\x1b[31m", 404, 1.0)
        await until(pilot, lambda: "404" in text_of(app))
        text = text_of(app)
        assert "/v1/␛[31m" in text and "\x1b" not in text
        line = next(line for line in text.splitlines() if " 200" in line)
        assert "/v1/chat/comp" in line and "1,234" in line
