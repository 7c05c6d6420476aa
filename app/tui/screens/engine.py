"""The engine screen: loaded models, running requests, the KV cache and the logs."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Static

from hearth.app.log_file import tail
from hearth.app.terminal import safe_text
from hearth.app.tui import engine_rows as rows
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.token_rate import TokenRate
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.app.tui.widgets.engine_view import KvMap, LogTail, SparklineRow
from hearth.backends.contract import HostStats
from hearth.backends.errors import HearthError

_LOOK_EVERY_S: Final = 1 / 3
_LOGS: Final = ("worker.log", "host.log")
_LOADING: Final = "Loading…"
_NO_HOST: Final = "The host process is not running; the next request starts it."
_EMPTY: Final = {"models": "No models loaded.", "requests": "No active requests."}
"""What is shown in place of rows, once the host has answered."""


class EngineScreen(HearthScreen):
    """Updated while it is shown; that keeps no model loaded and starts no host."""

    NAME = "engine"
    DEFAULT_CSS = """
    EngineScreen #host {
        height: 1; padding: 0 1; margin: 0 0 1 0; color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    EngineScreen #models { margin: 0 0 1 0; }
    EngineScreen #models > OptionList { max-height: 6; }
    EngineScreen KvMap { margin: 0 0 1 0; }
    EngineScreen #requests { height: 2fr; min-height: 4; }
    EngineScreen #requests > OptionList { height: 1fr; }
    EngineScreen SparklineRow { margin: 0 0 1 0; }
    EngineScreen.-narrow .sparkline-row--peak { display: none; }
    EngineScreen.-short KvMap, EngineScreen.-short SparklineRow,
    EngineScreen.-short #host { margin: 0; }
    EngineScreen.-short #kv-title { display: none; }
    EngineScreen.-short #models { margin: 0; }
    EngineScreen.-short #models > OptionList { max-height: 3; }
    """
    VERTICAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [  # type: ignore[misc]
        (0, "-short"),
        (30, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "cancel", "cancel request", id="engine.cancel"),
        Binding("u", "unload", "unload model", id="engine.unload"),
        Binding("l", "other_log", "other log", id="engine.log"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._stats: HostStats | None = None
        self._rate = TokenRate()
        self._log = _LOGS[0]
        self._timer: Timer | None = None
        self._looking = False

    def body(self) -> ComposeResult:
        yield Static(_LOADING, id="host", markup=False)
        yield ColumnList(*rows.MODEL_COLUMNS, title="Models", empty=_LOADING, id="models")
        yield KvMap()
        yield ColumnList(*rows.REQUEST_COLUMNS, title="Requests", empty=_LOADING, id="requests")
        yield SparklineRow("Generated tok/s, all requests")
        yield LogTail()

    def on_mount(self) -> None:
        """Start the timer."""
        self.query_one("#requests", ColumnList).list.focus()
        self._timer = self.set_interval(_LOOK_EVERY_S, self.look)
        self.look()

    def on_screen_resume(self) -> None:
        """Look again: the screen is shown."""
        if self._timer is not None:
            self._timer.resume()

    def on_screen_suspend(self) -> None:
        """The screen is hidden: pause the timer."""
        if self._timer is not None:
            self._timer.pause()

    @work(group="engine.look")
    async def look(self) -> None:
        """Ask the host and read the log once, unless that is under way."""
        if self._looking:
            return
        self._looking = True
        try:
            state, empty = await self._ask()
            lines = await asyncio.to_thread(tail, self.services.paths.log / self._log)
        finally:
            self._looking = False
        self._show(state, empty)
        self.query_one(LogTail).show(self._log, lines)

    async def _ask(self) -> tuple[str, dict[str, str]]:
        """The line about the host, and what is shown in place of missing rows."""
        try:
            self._stats = await self.services.host.stats()
        except HearthError as error:
            self._stats = None
            unknown = dict.fromkeys(_EMPTY, "Unknown: the host does not answer.")
            return f"{error.message} {error.hint}".strip(), unknown
        if self._stats is not None:
            return rows.host_line(self._stats, time.time()), _EMPTY
        if self.sessions.busy:  # They are starting it.
            return _LOADING, dict.fromkeys(_EMPTY, _LOADING)
        return _NO_HOST, _EMPTY

    def _show(self, state: str, empty: dict[str, str]) -> None:
        stats = self._stats or HostStats(0, "", 0.0, 0)
        self.query_one("#host", Static).update(safe_text(state))
        models = self.query_one("#models", ColumnList)
        models.show(list(rows.model_rows(stats)), empty=empty["models"])
        requests = self.query_one("#requests", ColumnList)
        requests.show(list(rows.request_rows(stats, self._title_of)), empty=empty["requests"])
        summary = rows.summary(stats)
        requests.title(f"Requests · {summary}" if summary else "Requests")
        self._show_memory()
        engines = ((worker.pid, worker.engine) for worker in stats.workers)
        self._rate.feed(
            time.monotonic(), {pid: engine.generated_tokens for pid, engine in engines if engine}
        )
        self.query_one(SparklineRow).show(self._rate.now, self._rate.per_second())

    def _show_memory(self) -> None:
        """The memory of the chosen model."""
        chosen = self.query_one("#models", ColumnList).selected
        for worker in self._stats.workers if self._stats is not None else ():
            if worker.path == chosen:
                self.query_one(KvMap).show(safe_text(worker.name), worker.engine)
                return
        self.query_one(KvMap).show("", None)

    def on_option_list_option_highlighted(self) -> None:
        """Another model is chosen, or another request."""
        self._show_memory()

    def _title_of(self, session: str) -> str | None:
        found = self.sessions.open_ones.get(session)
        return None if found is None else found.thread.title

    @work(group="engine.act")
    async def action_cancel(self) -> None:
        """Cancel the chosen request, of any client; its text so far is kept."""
        key = self.query_one("#requests", ColumnList).selected
        if self._stats is None or key is None:
            return
        for worker, request in rows.requests_of(self._stats):
            if rows.request_key(worker, request) != key:
                continue
            own = self.sessions.open_ones.get(request.session)
            if own is not None and own.is_busy:
                own.stop()
            else:
                await self.told(self.services.host.end_request(worker.pid, request.id))
            self.look()

    @work(group="engine.act")
    async def action_unload(self) -> None:
        """Unload the chosen model, which stops its requests."""
        path = self.query_one("#models", ColumnList).selected
        if path is not None:
            await self.told(self.services.host.unload(path))
            self.look()

    def action_other_log(self) -> None:
        """Show the log of the host, or that of the workers."""
        self._log = _LOGS[1 - _LOGS.index(self._log)]
        self.look()
