"""The terminal app over scripted models. The patches of Textual here make the tests fast; those in
`drawn/` run without them.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual._compositor import Compositor
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from hearth.app.chats.store import ChatStore
from hearth.app.library.downloads import Downloads
from hearth.app.library.hub import Hub
from hearth.app.library.local import Library
from hearth.app.paths import find_paths
from hearth.app.settings import load_settings
from hearth.app.tui.services import Services
from scripted import Script, ScriptedHost


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the cases of one test in one worker, so that shared objects are made once: all snapshots
    come from one walk through the app.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByTest(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("[")[0]

    return ByTest(config, log)


@pytest.fixture(autouse=True, scope="module")
def seldom_collected() -> Iterator[None]:
    """Collect garbage about once per app, which makes some 100,000 objects: with Python's own
    thresholds collections take a quarter of the time of these tests.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 10, 10)
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture(autouse=True, scope="module")
def styles_read_once() -> Iterator[None]:
    """Each app parses the style sheets of all widgets, several times; here all of them share the
    parsed sheets for the same colours.
    """
    read: dict[frozenset[tuple[str, str]], Any] = {}

    def sharing(begin: Callable[..., None]) -> Callable[..., None]:
        def begin_and_share(sheet: Stylesheet, *args: Any, **kwargs: Any) -> None:
            sheet._parse_cache = {}  # type: ignore[assignment]
            begin(sheet, *args, **kwargs)
            variables = frozenset(sheet._variables.items())
            sheet._parse_cache = read.setdefault(variables, {})

        return begin_and_share

    with pytest.MonkeyPatch.context() as patch:
        for name in ("__init__", "set_variables"):
            patch.setattr(Stylesheet, name, sharing(getattr(Stylesheet, name)))
        yield


@pytest.fixture(autouse=True, scope="module")
def short_looks() -> Iterator[None]:
    """Halve the time that Textual waits to detect that an app is idle, which it does twice after
    each key.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
        patch.setattr("textual._wait.SLEEP_IDLE", 0.0005)
        yield


@pytest.fixture(autouse=True, scope="module")
def drawn_when_waited_for() -> Iterator[None]:
    """Draw changes of an app when a test waits, instead of whenever Textual would send the terminal
    a frame, because the frames in between are not used.
    """
    is_waited_for = False
    draw = Compositor.render_update

    def draw_or_wait(compositor: Compositor, full: bool = False, **kwargs: Any) -> Any:
        # Undrawn regions stay among the compositor's dirty regions; screenshots are full.
        return draw(compositor, full, **kwargs) if full or is_waited_for else None

    def drawing(wait: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def wait_and_draw(pilot: Pilot[Any], *args: Any) -> None:
            nonlocal is_waited_for
            await wait(pilot, *args)
            app = pilot.app
            if not app._batch_count and app.screen._compositor._dirty_regions:
                is_waited_for = True
                try:
                    app.screen._compositor_refresh()
                finally:
                    is_waited_for = False

        return wait_and_draw

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compositor, "render_update", draw_or_wait)
        for name in ("pause", "press"):
            patch.setattr(Pilot, name, drawing(getattr(Pilot, name)))
        yield


@pytest.fixture
def host() -> ScriptedHost:
    """Models that reply that they work; a test changes `scripts["guide"]`."""
    return ScriptedHost({"guide": Script(), "guide-draft": Script("I am the draft.")})


@pytest.fixture
def services(tmp_path: Path, host: ScriptedHost) -> Iterator[Services]:
    """Services in a separate folder, with an empty history and the bundled models."""
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
