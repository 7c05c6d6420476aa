"""Draws every screen of the app at 80 and 120 columns, dark and light, to `docs/screens/`.

    python tools/screenshots.py [--model FILE] [NAME ...]

The app is the real one, with its host, over its own history. SmolLM2 answers, from FILE or the
installed one, with a fixed seed. The speeds shown are those of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCREENS = ROOT / "docs" / "screens"
THEMES = {"": "textual-dark", "-light": "textual-light"}
WIDTHS = (80, 120)
HEIGHT = 32
QUESTION = "What is the capital of France?"
FURTHER = ("Give me three names for a cat.", "What is a regular expression?")
LONG = "Write a long story about a lighthouse."
SETTINGS = """\
theme = "{theme}"

[sampling]
max_tokens = 120
seed = 7
"""
sys.path.insert(0, str(ROOT / "tests" / "support"))
polling = import_module("polling")
screens = import_module("screens")
View = Callable[[Any], Awaitable[None]]


def build(home: Path) -> Any:
    """The app's services, with their files in `home`."""
    from hearth.app.chats.store import ChatStore
    from hearth.app.host_connection import HostConnection
    from hearth.app.library.downloads import Downloads
    from hearth.app.library.hub import Hub
    from hearth.app.library.local import Library
    from hearth.app.paths import find_paths
    from hearth.app.settings import load_settings
    from hearth.app.tui.services import Services

    paths = find_paths()
    settings = load_settings(paths.settings_file)
    hub = Hub(offline=True)
    return Services(
        paths,
        settings,
        Library(paths.models),
        ChatStore(paths.chats_file),
        HostConnection(paths.host_place(), settings.host_idle_s, settings.host_limits),
        hub,
        Downloads(paths.downloads_file, home / "hub", hub),
        lambda: settings,
    )


async def shown(pilot: Any, *texts: str) -> None:
    """Wait until all of `texts` are on the screen."""
    await polling.until(pilot, lambda: all(one in screens.text_of(pilot.app) for one in texts))
    await pilot.pause(0.3)


async def ask(pilot: Any, text: str) -> None:
    """Send `text` to the model in an empty chat, and wait for the end of its answer."""
    await pilot.press(*text, "enter")
    await shown(pilot, "tok/s")
    await polling.until(pilot, lambda: not pilot.app.sessions.busy)
    await pilot.pause(0.5)


async def on_first(pilot: Any) -> None:
    await pilot.pause(1.5)


async def on_chat(pilot: Any) -> None:
    await pilot.press("alt+down")
    await shown(pilot, QUESTION, "Paris")


async def on_message(pilot: Any) -> None:
    await on_chat(pilot)
    await pilot.press("ctrl+t")
    await pilot.pause(0.3)


async def on_search(pilot: Any) -> None:
    await pilot.press("ctrl+f", *"france")
    await shown(pilot, "France")


async def on_compare(pilot: Any) -> None:
    await pilot.press(*"/compare guide", "enter")
    await pilot.pause(0.5)
    await pilot.press(*QUESTION, "enter")
    await polling.until(pilot, lambda: screens.text_of(pilot.app).count("tok/s") >= 2)
    await pilot.pause(0.5)


async def on_form(pilot: Any) -> None:
    await on_chat(pilot)
    await pilot.press("ctrl+g")
    await pilot.pause(0.5)


async def on_help(pilot: Any) -> None:
    await pilot.press("f1")
    await pilot.pause(0.5)


async def on_engine(pilot: Any) -> None:
    await pilot.press(*"/set max_tokens 4000", "enter")
    await shown(pilot, "max_tokens is 4000")
    await pilot.press(*LONG, "enter")
    await polling.until(pilot, lambda: pilot.app.sessions.busy)
    pilot.app.action_go("engine")
    await shown(pilot, "decoding")


def on_tab(key: str, *texts: str) -> View:
    """Go to the library tab that `key` opens and wait until it shows `texts`."""

    async def go(pilot: Any) -> None:
        pilot.app.action_go("library")
        await shown(pilot, "Weights")
        await pilot.press(key)
        await shown(pilot, *texts)
        await pilot.pause(1.0)

    return go


def on(name: str) -> View:
    """Go to the screen called `name`."""

    async def go(pilot: Any) -> None:
        pilot.app.action_go(name)
        await pilot.pause(2.0)

    return go


async def on_doctor(pilot: Any) -> None:
    pilot.app.action_go("doctor")
    await shown(pilot, "llama.cpp")
    await polling.until(pilot, lambda: "Checking" not in screens.text_of(pilot.app))
    await pilot.pause(0.5)


VIEWS: dict[str, View] = {
    "first": on_first,
    "chat": on_chat,
    "message": on_message,
    "search": on_search,
    "compare": on_compare,
    "chat-settings": on_form,
    "help": on_help,
    "engine": on_engine,
    "catalogue": on_tab("2", "Qwen3 4B"),
    "downloads": on_tab("4", "No downloads"),
    "doctor": on_doctor,
    **{name: on(name) for name in ("library", "quantize", "endpoint", "settings")},
}


async def visit(home: Path, width: int, view: View) -> str:
    """The screen of `view`, as SVG."""
    from hearth.app.tui.app import HearthApp

    services = build(home)
    with closing(services.chats):
        app = HearthApp(services)
        try:
            async with app.run_test(size=(width, HEIGHT)) as pilot:
                await pilot.pause(0.5)
                await view(pilot)
                drawn = app.export_screenshot(title="hearth")
                await app.sessions.close()
        finally:
            await services.host.close()
            services.downloads.close()
    return with_short_paths(drawn, {str(home): "~/.hearth", str(ROOT): "~/hearth"})


def with_short_paths(drawn: str, names: Mapping[str, str]) -> str:
    """The SVG `drawn` with paths replaced by `names`; letters keep their width."""

    def shorten(text: re.Match[str]) -> str:
        length, attributes, shown = float(text[1]), text[2], text[3]
        short = shown
        for path, name in names.items():
            short = short.replace(path, name)
        length *= len(unescape(short)) / len(unescape(shown))
        return f'textLength="{length:g}"{attributes}>{short}</text>'

    return re.sub(r'textLength="([\d.]+)"([^>]*)>([^<]+)</text>', shorten, drawn)


async def history(pilot: Any) -> None:
    """Make chats with real answers; the one with `QUESTION` is the last."""
    for text in (*FURTHER, QUESTION):
        await pilot.press("ctrl+n")
        await pilot.pause(0.3)
        await ask(pilot, text)


def draw(names: Sequence[str], model: Path, home: Path) -> None:
    """Draw these views in all widths and themes, with the app's folders in `home`."""
    from hearth.app.paths import find_paths

    os.environ |= {"HEARTH_HOME": str(home), "HF_HUB_CACHE": str(home / "hub")}
    paths = find_paths()
    for folder in (paths.config, paths.smollm2_file.parent):
        folder.mkdir(parents=True)
    paths.smollm2_file.symlink_to(model)
    paths.settings_file.write_text(SETTINGS.format(theme="textual-dark"), encoding="utf-8")
    asyncio.run(visit(home, 120, history))
    kept = paths.chats_file.read_bytes()
    for name in names:
        for suffix, theme in THEMES.items():
            paths.settings_file.write_text(SETTINGS.format(theme=theme), encoding="utf-8")
            for width in WIDTHS:
                for file in paths.data.glob(f"{paths.chats_file.name}*"):
                    file.unlink()
                if name != "first":
                    paths.chats_file.write_bytes(kept)
                path = SCREENS / f"{name}-{width}{suffix}.svg"
                path.write_text(asyncio.run(visit(home, width, VIEWS[name])), encoding="utf-8")
                print(path.relative_to(ROOT))


def main() -> None:
    """Draw the views that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file of SmolLM2")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(VIEWS))
    given = parser.parse_args()
    os.environ.pop("NO_COLOR", None)
    SCREENS.mkdir(parents=True, exist_ok=True)
    model = (given.model or installed()).resolve()
    with tempfile.TemporaryDirectory(prefix="hearth-screens-") as folder:
        draw(given.names or list(VIEWS), model, Path(folder, "home"))


def installed() -> Path:
    """The file of the installed SmolLM2."""
    from hearth.app.library.local import Library
    from hearth.app.paths import find_paths

    return Library(find_paths().models).resolve("smollm2").path


if __name__ == "__main__":
    main()
