"""`GET /metrics`: for Prometheus, and as JSON for clients that accept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.exposition import CONTENT_TYPE, Family, exposition
from hearth.app.server.histogram import Histogram
from hearth.app.server.kv_use import batch_utilization, bytes_by_state, tokens_by_state
from hearth.app.server.loaded import host_stats_if_any
from hearth.app.server.metrics import Metrics, Series
from hearth.app.server.query import query
from hearth.app.server.rate import WINDOW_S
from hearth.app.server.services import services_of
from hearth.backends.contract import EngineStats, HostStats, WorkerStats

_PERCENTS: Final = (50, 95, 99)


async def get_metrics(http: Request) -> Response:
    """The server's measurements, and the host's statistics of the loaded models."""
    query(http)
    services = services_of(http)
    stats = await host_stats_if_any(services.hosts)
    if _accepts_json(http.headers.get("accept", "")):
        return JSONResponse(as_json(services.metrics, stats))
    content = exposition(families(services.metrics, stats))
    return Response(content, headers={"content-type": CONTENT_TYPE})


def _accepts_json(accept: str) -> bool:
    """Whether the header names JSON, which Prometheus does not send."""
    kinds = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    return "application/json" in kinds


def families(metrics: Metrics, stats: HostStats | None) -> list[Family]:
    """All metrics for Prometheus; `stats` None: the host does not respond."""
    up = Family("hearth_host_up", "gauge", "1 if the host process responds, else 0.")
    up.add(int(stats is not None))
    models = [*_of_models(stats)] if stats is not None else []
    return [up, *_of_server(metrics), *_of_series(metrics), *models]


def _of_server(metrics: Metrics) -> Iterator[Family]:
    total = metrics.total()
    for name, text, value in (
        ("uptime_seconds", "Time since the server started.", metrics.uptime_s),
        ("requests_running", "Running requests.", metrics.running),
        (
            "requests_per_second",
            f"Mean rate of requests that ended in the last {WINDOW_S} s.",
            metrics.requests_per_s,
        ),
        (
            "generated_tokens_per_second",
            f"Mean rate of generated tokens of all requests in the last {WINDOW_S} s.",
            metrics.tokens_per_s,
        ),
        ("cache_hit_ratio", "Cached prompt tokens over prompt tokens.", cache_hit_rate(total)),
    ):
        family = Family(f"hearth_{name}", "gauge", text)
        family.add(value)
        yield family


def _of_series(metrics: Metrics) -> Iterator[Family]:
    """The counts by route and model."""
    ended = Family("hearth_requests_total", "counter", "Requests that ended, by status class.")
    for series in metrics.series():
        for status, count in sorted(series.statuses.items()):
            ended.add(count, route=series.route, model=series.model, status=status)
    yield ended
    for name, text, counted in _COUNTERS:
        family = Family(f"hearth_{name}_total", "counter", text)
        for series in metrics.series():
            family.add(counted(series), route=series.route, model=series.model)
        yield family
    for name, text, measured in _HISTOGRAMS:
        family = Family(f"hearth_{name}_seconds", "histogram", text)
        for series in metrics.series():
            family.add_histogram(measured(series), route=series.route, model=series.model)
        yield family


_COUNTERS: Final[tuple[tuple[str, str, Callable[[Series], int]], ...]] = (
    ("requests_refused", "Requests refused as too many were waiting (429).", lambda s: s.refused),
    ("requests_cancelled", "Requests whose client disconnected (499).", lambda s: s.cancelled),
    ("requests_failed", "Requests that ended with status 500 or above.", lambda s: s.failed),
    ("prompt_tokens", "Prompt tokens.", lambda s: s.prompt_tokens),
    ("cached_tokens", "Prompt tokens read from the cache.", lambda s: s.cached_tokens),
    ("generated_tokens", "Generated tokens.", lambda s: s.generated_tokens),
)
_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[Series], Histogram]], ...]] = (
    ("request_duration", "Duration of successful requests.", lambda s: s.latency),
    ("time_to_first_token", "Time from arrival to the first token.", lambda s: s.ttft),
    ("inter_token", "Time from one token of an answer to the next.", lambda s: s.inter_token),
)


def _of_models(stats: HostStats) -> Iterator[Family]:
    """The host's statistics of each loaded model."""
    running = Family("hearth_model_running", "gauge", "Running sequences.")
    waiting = Family("hearth_model_waiting", "gauge", "Waiting requests.")
    restarts = Family(
        "hearth_worker_restarts_total", "counter", "Restarts of the model's worker process."
    )
    used = Family(
        "hearth_batch_utilization_ratio",
        "gauge",
        "Mean number of sequences in a step over the maximum.",
    )
    tokens = Family("hearth_kv_tokens", "gauge", "Tokens in the KV cache, by state.")
    size = Family("hearth_kv_bytes", "gauge", "Bytes of the KV cache, by state.")
    for name, worker in named(stats.workers):
        running.add(worker.running, model=name)
        waiting.add(worker.waiting, model=name)
        restarts.add(worker.restarts, model=name)
        used.add(batch_utilization([worker]), model=name)
        if worker.engine is not None:
            for state, count in tokens_by_state(worker.engine).items():
                tokens.add(count, model=name, state=state)
            for state, count in bytes_by_state(worker.engine).items():
                size.add(count, model=name, state=state)
    yield from (running, waiting, restarts, used, tokens, size)


def named(workers: Sequence[WorkerStats]) -> Iterator[tuple[str, WorkerStats]]:
    """Each worker with a unique name, as two files may have the same name."""
    seen: dict[str, int] = {}
    for worker in workers:
        seen[worker.name] = number = seen.get(worker.name, 0) + 1
        yield worker.name if number == 1 else f"{worker.name} ({number})", worker


def cache_hit_rate(series: Series) -> float | None:
    """The share of prompt tokens that was cached, in [0, 1]; None before the first prompt."""
    return series.cached_tokens / series.prompt_tokens if series.prompt_tokens else None


def as_json(metrics: Metrics, stats: HostStats | None) -> dict[str, Any]:
    """The metrics as JSON; null where nothing was measured. Durations are in seconds."""
    total = metrics.total()
    workers = stats.workers if stats is not None else ()
    models = [_model(name, worker) for name, worker in named(workers)]
    kv = [model["kv"] for model in models if model["kv"] is not None]
    return {
        "uptime_s": metrics.uptime_s,
        "window_s": WINDOW_S,
        "requests_running": metrics.running,
        "requests_per_second": metrics.requests_per_s,
        "tokens_per_second": metrics.tokens_per_s,
        **_counted(total),
        "batch_utilization": batch_utilization(workers),
        "queue": sum(worker.waiting for worker in workers),
        "worker_restarts": sum(worker.restarts for worker in workers),
        "kv": {key: sum(each[key] for each in kv) for key in kv[0]} if kv else None,
        "host_up": stats is not None,
        "by_route": [
            {"route": series.route, "model": series.model, **_counted(series)}
            for series in metrics.series()
        ],
        "models": models,
    }


def _counted(series: Series) -> dict[str, Any]:
    return {
        "requests_total": series.requests,
        "requests_by_status": dict(sorted(series.statuses.items())),
        "requests_refused": series.refused,
        "requests_cancelled": series.cancelled,
        "requests_failed": series.failed,
        "latency_s": _summary(series.latency),
        "ttft_s": _summary(series.ttft),
        "inter_token_s": _summary(series.inter_token),
        "prompt_tokens": series.prompt_tokens,
        "cached_tokens": series.cached_tokens,
        "generated_tokens": series.generated_tokens,
        "cache_hit_rate": cache_hit_rate(series),
    }


def _summary(histogram: Histogram) -> dict[str, Any]:
    percentiles = {f"p{percent}": histogram.percentile(percent) for percent in _PERCENTS}
    return {"count": histogram.count, "avg": histogram.mean_s, **percentiles}


def _model(name: str, worker: WorkerStats) -> dict[str, Any]:
    engine = worker.engine
    return {
        "model": name,
        "running": worker.running,
        "waiting": worker.waiting,
        "restarts": worker.restarts,
        "batch_utilization": batch_utilization([worker]),
        "kv": _kv(engine) if engine is not None else None,
    }


def _kv(engine: EngineStats) -> dict[str, int]:
    """Tokens and bytes by state."""
    return {
        **{f"{state}_tokens": count for state, count in tokens_by_state(engine).items()},
        **{f"{state}_bytes": count for state, count in bytes_by_state(engine).items()},
    }
