"""The host's models and requests, as rows of the engine screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from textual.content import Content

from hearth.app.format import duration, size, state_of, unload_in_s
from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.column_list import Cell, Column, Row
from hearth.backends.contract import HostStats, RequestStats, WorkerStats

MODEL_COLUMNS: Final = (
    Column("model"),
    Column("state", 10),
    Column("idle", 12, right=True, least=72),
    Column("unloads in", 12, right=True),
    Column("restarts", 8, right=True, least=90),
    Column("size", 9, right=True, least=100),
    Column("context", 9, right=True, least=110),
    Column("process", 8, right=True, least=130),
)
REQUEST_COLUMNS: Final = (
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
    "prefill": "$text-warning",
}


def model_rows(stats: HostStats) -> Iterator[Row]:
    """A line for each model; its key is its path."""
    for worker in stats.workers:
        doing = state_of(worker)
        left = unload_in_s(worker)
        info = worker.info
        yield Row(
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


def request_rows(stats: HostStats, title_of: Callable[[str], str | None]) -> Iterator[Row]:
    """A line for each request that a worker knows of; its key is made by `request_key`.

    Args:
        title_of: the title of the chat with this id; None: it is not open here.
    """
    for worker, request in requests_of(stats):
        session = request.session
        title = title_of(session)
        yield Row(
            request_key(worker, request),
            (
                safe_text((title or "(no title)") if title is not None else session or "(no name)"),
                safe_text(worker.name),
                _doing(request),
                _count(request.prompt_tokens),
                _count(request.cached_tokens),
                _count(request.generated_tokens),
                f"{request.tok_per_s:,.1f}" if request.tok_per_s else _NONE,
            ),
        )


def requests_of(stats: HostStats) -> Iterator[tuple[WorkerStats, RequestStats]]:
    """Every request, with its worker."""
    for worker in stats.workers:
        if worker.engine is not None:
            for request in worker.engine.requests:
                yield worker, request


def request_key(worker: WorkerStats, request: RequestStats) -> str:
    """Identifies this request among all of the host."""
    return f"{worker.pid}/{request.id}"


def summary(stats: HostStats) -> str:
    """How many run and wait, such as "3 running, 2 waiting"; empty where there are none."""
    running = sum(worker.running for worker in stats.workers)
    waiting = sum(worker.waiting for worker in stats.workers)
    return f"{running} running, {waiting} waiting" if running or waiting else ""


def host_line(stats: HostStats, now_s: float) -> str:
    """The host itself: its process, how long it has run, how many clients are attached.

    Args:
        now_s: Unix time.
    """
    others = max(0, stats.clients - 1)
    attached = f"{others or 'no'} other client{'' if others == 1 else 's'}"
    up = duration(max(0.0, now_s - stats.started_at))
    return f"host process {stats.pid} · {safe_text(stats.version)} · up {up} · {attached}"


def _doing(request: RequestStats) -> Cell:
    if request.state != "prefill":
        return _colored(request.state)
    total = request.prompt_tokens + request.generated_tokens
    return _colored("prefill", f" {request.computed_tokens:,}/{total:,}")


def _colored(word: str, rest: str = "") -> Cell:
    color = _COLORS.get(word)
    return Content.assemble((word, color) if color else word, rest)


def _count(tokens: int) -> str:
    return f"{tokens:,}" if tokens else _NONE
