"""The engine screen: loaded models, running requests, the KV cache and the logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import OptionList, Static

from hearth.app.format import duration, size, state_of, unload_in_s
from hearth.app.log_file import tail
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.token_rate import TokenRate
from hearth.app.tui.widgets.column_list import Cell, Column, ColumnList, Row
from hearth.app.tui.widgets.engine_view import KvMap, LogTail, SparklineRow
from hearth.backends.contract.loaded import HostStats, RequestStats, WorkerStats
from hearth.backends.errors import HearthError

_LOOK_EVERY_S: Final = 1 / 3
_LOGS: Final = ("worker.log", "host.log")
_LOADING: Final = "Loading…"
_NO_HOST: Final = "The host process is not running; the next request starts it."
_EMPTY: Final = {"models": "No models loaded.", "requests": "No active requests."}
"""Texts shown if there are no rows, once the host has answered."""
_MODELS: Final = (
    Column("model"),
    Column("state", 10),
    Column("idle", 12, right=True, least=72),
    Column("unloads in", 12, right=True),
    Column("restarts", 8, right=True, least=90),
    Column("size", 9, right=True, least=100),
    Column("context", 9, right=True, least=110),
    Column("process", 8, right=True, least=130),
)
_REQUESTS: Final = (
    Column("request"),
    Column("model", 16, least=100),
    Column("state", 20),
    Column("prompt", 9, right=True, least=72),
    Column("cached", 9, right=True, least=90),
    Column("generated", 9, right=True),
    Column("tok/s", 7, right=True),
)
_NONE: Final = "–"
_COLORS: Final = {
    "generating": "$text-success",
    "loading": "$text-warning",
    "decoding": "$text-success",
    "streaming": "$text-warning",
    "prefill": "$text-warning",
}


class EngineScreen(HearthScreen):
    """Shows the state of the engine; updates neither keep models loaded nor start the host."""

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
    AUTO_FOCUS = "#requests OptionList"
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
        self._looking = False

    def body(self) -> ComposeResult:
        yield Static(_LOADING, id="host", markup=False)
        yield ColumnList(*_MODELS, title="Models", empty=_LOADING, id="models")
        yield KvMap()
        yield ColumnList(*_REQUESTS, title="Requests", empty=_LOADING, id="requests")
        yield SparklineRow("Generated tok/s, all requests")
        yield LogTail()

    def on_mount(self) -> None:
        self.while_shown(_LOOK_EVERY_S, self.look)

    @on(ScreenResume)
    @work(group="engine.look")
    async def look(self) -> None:
        """Ask the host and read the log once, unless this is already in progress."""
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
        """The line about the host, and the texts shown if there are no rows."""
        try:
            self._stats = await self.services.host.stats()
        except HearthError as error:
            self._stats = None
            unknown = dict.fromkeys(_EMPTY, "Unknown: the host does not answer.")
            return str(error), unknown
        if self._stats is not None:
            return _host_line(self._stats, time.time()), _EMPTY
        if self.sessions.busy:  # The chats are starting it.
            return _LOADING, dict.fromkeys(_EMPTY, _LOADING)
        return _NO_HOST, _EMPTY

    def _show(self, state: str, empty: dict[str, str]) -> None:
        stats = self._stats or HostStats(0, "", 0.0, 0)
        self.query_one("#host", Static).update(safe_text(state))
        models = self.query_one("#models", ColumnList)
        models.show([_model_row(worker) for worker in stats.workers], empty=empty["models"])
        requests = self.query_one("#requests", ColumnList)
        rows = [_request_row(*one, self._name_of(one[1])) for one in _requests_of(stats)]
        requests.show(rows, empty=empty["requests"])
        summary = _summary(stats)
        requests.title(f"Requests · {summary}" if summary else "Requests")
        self._show_memory()
        engines = ((worker.pid, worker.engine) for worker in stats.workers)
        self._rate.feed(
            time.monotonic(), {pid: engine.generated_tokens for pid, engine in engines if engine}
        )
        self.query_one(SparklineRow).show(self._rate.now, self._rate.per_second())

    @on(OptionList.OptionHighlighted)
    def _show_memory(self) -> None:
        """Show the memory of the chosen model."""
        chosen = self.query_one("#models", ColumnList).selected
        for worker in self._stats.workers if self._stats is not None else ():
            if worker.path == chosen:
                self.query_one(KvMap).show(safe_text(worker.name), worker.engine)
                return
        self.query_one(KvMap).show("", None)

    def _name_of(self, request: RequestStats) -> str:
        """The title of the request's chat if that is open here, else the client's name for it."""
        chat = self.sessions.open_ones.get(request.session)
        if chat is not None:
            return chat.thread.title or "(no title)"
        return request.session or "(no name)"

    @work(group="engine.act")
    async def action_cancel(self) -> None:
        """Cancel the chosen request, of any client; its text so far is kept."""
        key = self.query_one("#requests", ColumnList).selected
        if self._stats is None or key is None:
            return
        for worker, request in _requests_of(self._stats):
            if _request_key(worker, request) != key:
                continue
            own = self.sessions.open_ones.get(request.session)
            if own is not None and own.is_busy:
                own.stop()
            else:
                await self.succeeds(self.services.host.end_request(worker.pid, request.id))
            self.look()

    @work(group="engine.act")
    async def action_unload(self) -> None:
        """Unload the chosen model, which stops its requests."""
        path = self.query_one("#models", ColumnList).selected
        if path is not None:
            await self.succeeds(self.services.host.unload(path))
            self.look()

    def action_other_log(self) -> None:
        """Switch between the log of the workers and the log of the host."""
        self._log = _LOGS[1 - _LOGS.index(self._log)]
        self.look()


def _model_row(worker: WorkerStats) -> Row:
    """The row of a model; the key is its path."""
    doing, left, info = state_of(worker), unload_in_s(worker), worker.info
    return Row(
        worker.path,
        (
            safe_text(worker.name),
            _colored(doing),
            duration(worker.idle_s) if doing == "idle" else _NONE,
            _NONE if left is None else duration(left),
            str(worker.restarts),
            _NONE if info is None else size(info.size_bytes),
            _NONE if info is None else f"{info.context:,}",
            str(worker.pid) if worker.pid else _NONE,
        ),
    )


def _request_row(worker: WorkerStats, request: RequestStats, name: str) -> Row:
    """The row of a worker's request; the key is made by `_request_key`."""
    return Row(
        _request_key(worker, request),
        (
            safe_text(name),
            safe_text(worker.name),
            _doing(request),
            _count(request.prompt_tokens),
            _count(request.cached_tokens),
            _count(request.generated_tokens),
            f"{request.tok_per_s:,.1f}" if request.tok_per_s else _NONE,
        ),
    )


def _requests_of(stats: HostStats) -> Iterator[tuple[WorkerStats, RequestStats]]:
    """Every request, with its worker."""
    for worker in stats.workers:
        if worker.engine is not None:
            for request in worker.engine.requests:
                yield worker, request


def _request_key(worker: WorkerStats, request: RequestStats) -> str:
    """Identifies the request among all requests of the host."""
    return f"{worker.pid}/{request.id}"


def _summary(stats: HostStats) -> str:
    """The counts of requests, such as "3 running, 2 waiting"; empty if there are none."""
    running = sum(worker.running for worker in stats.workers)
    waiting = sum(worker.waiting for worker in stats.workers)
    return f"{running} running, {waiting} waiting" if running or waiting else ""


def _host_line(stats: HostStats, now_s: float) -> str:
    """The line about the host: its process, uptime and number of other clients.

    Args:
        now_s: Unix time.
    """
    others = max(0, stats.clients - 1)
    attached = f"{others or 'no'} other client{'' if others == 1 else 's'}"
    up = duration(max(0.0, now_s - stats.started_at))
    return f"host process {stats.pid} · {safe_text(stats.version)} · up {up} · {attached}"


def _doing(request: RequestStats) -> Cell:
    gone = request.forgotten_tokens
    if gone and request.state == "decoding":
        return _colored("streaming", f" forgot {gone if gone < 1000 else f'{gone // 1000}k'}")
    if request.state != "prefill":
        return _colored(request.state)
    total = request.prompt_tokens + request.generated_tokens
    return _colored("prefill", f" {request.computed_tokens:,}/{total:,}")


def _colored(word: str, rest: str = "") -> Cell:
    color = _COLORS.get(word)
    return Content.assemble((word, color) if color else word, rest)


def _count(tokens: int) -> str:
    return f"{tokens:,}" if tokens else _NONE
