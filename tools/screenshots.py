"""Draws every screen of the terminal app at 80 and 120 columns into `docs/screens/`.

    python tools/screenshots.py [NAME ...]

The app is the real one over a history made for this and models whose answers are written down, so
that the pictures are the same on every machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
SCREENS = ROOT / "docs" / "screens"
WIDTHS = (80, 120)
HEIGHT = 32
sys.path.insert(0, str(ROOT / "tests" / "support"))

ANSWER = """\
Three things decide whether a model fits:

1. **Its weights**, which take about the size of the file.
2. **Keys and values**, which grow with the context: `--ctx` sets how far.
3. Buffers, some hundred megabytes.

```console
$ hearth fit Qwen/Qwen3-0.6B-GGUF:Q8_0 --ctx 8192
```

`hearth fit` adds them up *before* anything is downloaded.
"""


def build(home: Path) -> Any:
    """Services over a small history and scripted models."""
    from hearth.app.chats.store import ChatStore
    from hearth.app.library.downloads import Downloads
    from hearth.app.library.hub import Hub
    from hearth.app.library.local import Library
    from hearth.app.paths import find_paths
    from hearth.app.settings import load_settings
    from hearth.app.tui.services import Services

    scripted = import_module("scripted")

    paths = find_paths({"HEARTH_HOME": str(home)})
    paths.data.mkdir(parents=True)
    scripts = {
        "guide": scripted.Script(ANSWER, reasoning="What fits? Name the parts, then the command."),
        "guide-draft": scripted.Script("It depends on the size of the model and of the context."),
    }
    settings = load_settings(paths.settings_file, {})
    chats = ChatStore(paths.chats_file)
    for title in ("Regular expressions for log files", "Names for a cat", "Travel to Lisbon"):
        thread = chats.create(title=title, model="guide")
        chats.add(thread.id, None, "user", title)
    hub = Hub(offline=True)
    return Services(
        paths,
        settings,
        Library(paths.models),
        chats,
        import_module("busy_engine").BusyHost(scripts),
        hub,
        Downloads(paths.downloads_file, home / "hub", hub),
        lambda: settings,
    )


async def on_chat(pilot: Any) -> None:
    await import_module("pilots").ask(pilot, "What decides whether a model fits my laptop?")
    await pilot.pause(0.4)


async def on_search(pilot: Any) -> None:
    await import_module("pilots").ask(pilot, "What decides whether a model fits my laptop?")
    await pilot.press("ctrl+f", *"fits")
    await pilot.pause(0.6)


async def on_compare(pilot: Any) -> None:
    await import_module("pilots").say(pilot, "/compare guide-draft")
    await pilot.pause(0.2)
    await pilot.press(*"What fits?", "enter")
    await pilot.pause(0.8)


async def on_form(pilot: Any) -> None:
    await pilot.press("ctrl+g")
    await pilot.pause(0.4)


async def on_engine(pilot: Any) -> None:
    from hearth.app.tui.screens import engine

    busy = import_module("busy_engine")
    services = pilot.app.services
    busy.write_logs(services.paths.log)
    with patch.object(engine, "time", services.host):
        pilot.app.action_go("engine")
        await pilot.pause(0.5)
        await busy.watch_a_minute(pilot.app.screen, services.host)
        await pilot.pause(0.5)


async def on_help(pilot: Any) -> None:
    await pilot.press("f1")
    await pilot.pause(0.3)


def on(name: str) -> Callable[[Any], Awaitable[None]]:
    """Go to the screen called `name`."""

    async def go(pilot: Any) -> None:
        pilot.app.action_go(name)
        await pilot.pause(1.0)

    return go


VIEWS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "chat": on_chat,
    "search": on_search,
    "compare": on_compare,
    "chat-settings": on_form,
    "help": on_help,
    "engine": on_engine,
    **{name: on(name) for name in ("library", "quantize", "endpoint", "settings", "doctor")},
}


async def draw(name: str, width: int) -> Path:
    """Draw one view; returns the file."""
    from hearth.app.tui.app import HearthApp

    with tempfile.TemporaryDirectory(prefix="hearth-screens-") as folder:
        services = build(Path(folder, "home"))
        with closing(services.chats):
            app = HearthApp(services)
            async with app.run_test(size=(width, HEIGHT)) as pilot:
                await pilot.pause(0.2)
                await VIEWS[name](pilot)
                svg = app.export_screenshot(title="hearth")
    svg = svg.replace(folder, "~").replace(str(ROOT), "~/hearth")
    path = SCREENS / f"{name}-{width}.svg"
    path.write_text(svg, encoding="utf-8")
    return path


def main() -> None:
    """Draw the views that are named, or all."""
    os.environ.pop("NO_COLOR", None)
    SCREENS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or VIEWS:
        for width in WIDTHS:
            print(asyncio.run(draw(name, width)).relative_to(ROOT))


if __name__ == "__main__":
    main()
