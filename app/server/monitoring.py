"""`GET /health` reports whether the server is ready, `GET /metrics` its measurements.

Measurements of the server and of the loaded models are in Prometheus' text format, version 0.0.4,
or JSON for clients that accept it.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.body import query
from hearth.app.server.cache import bytes_by_state, tokens_by_state
from hearth.app.server.metrics import WINDOW_S, Histogram, Metrics, Series
from hearth.app.server.services import RETRY_S, services_of
from hearth.backends.contract.loaded import EngineStats, HostStats, WorkerStats
from hearth.backends.contract.version import hearth_version

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PERCENTS: Final = (50, 95, 99)
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Labels = Mapping[str, str]


async def health(http: Request) -> Response:
    """`{"status", "version", "backends"}`.

    200 and "ok" if requests are accepted and the host responds, 503 and "loading" or "draining"
    otherwise. `backends` maps the backend of each loaded model to the version of its library.

    Raises:
        HostUnreachable: the host does not respond within a few seconds.
    """
    services = services_of(http)
    status = services.state.status
    body: dict[str, Any] = {"status": status, "version": hearth_version()}
    if status != "ok":
        return JSONResponse(body, 503, {"retry-after": str(RETRY_S)})
    workers = (await services.host_stats()).workers
    loaded = (worker.info for worker in workers if worker.info is not None)
    backends = {info.backend: info.backend_version for info in loaded}
    return JSONResponse({**body, "backends": backends})


async def get_metrics(http: Request) -> Response:
    """The server's measurements, and the host's statistics of the loaded models."""
    query(http)
    services = services_of(http)
    stats = await services.host_stats_if_any()
    accepted = http.headers.get("accept", "").split(",")
    # Prometheus does not list JSON in its Accept header.
    if any(kind.partition(";")[0].strip().lower() == "application/json" for kind in accepted):
        return JSONResponse(as_json(services.metrics, stats))
    content = exposition(families(services.metrics, stats))
    return Response(content, headers={"content-type": CONTENT_TYPE})


_OF_ROUTES: Final = (
    ("requests_refused_total", "Requests refused as too many were waiting (429).", "refused"),
    ("requests_cancelled_total", "Requests whose client disconnected (499).", "cancelled"),
    ("requests_failed_total", "Requests that ended with status 500 or above.", "failed"),
    ("prompt_tokens_total", "Prompt tokens.", "prompt_tokens"),
    ("cached_tokens_total", "Prompt tokens read from the cache.", "cached_tokens"),
    ("generated_tokens_total", "Generated tokens.", "generated_tokens"),
    ("request_duration_seconds", "Duration of successful requests.", "latency"),
    ("time_to_first_token_seconds", "Time from arrival to the first token.", "ttft"),
    ("inter_token_seconds", "Time from one token of an answer to the next.", "inter_token"),
)
"""(name without "hearth_", help, field of `Series`) of metrics with a sample per series."""
_OF_MODELS: Final = (
    ("model_running", "Running sequences.", "running"),
    ("model_waiting", "Waiting requests.", "waiting"),
    ("worker_restarts_total", "Restarts of the model's worker process.", "restarts"),
)
"""(name without "hearth_", help, field of `WorkerStats`) of metrics with a sample per model."""
_OF_ENGINES: Final = (
    (
        "declined_drafts_total",
        "Drafts that were not used, because they would not have paid.",
        "declined_drafts",
    ),
    (
        "kv_disk_read_tokens_total",
        "Tokens copied from disk into the KV cache since the model was loaded.",
        "disk_read_tokens",
    ),
    (
        "kv_disk_written_bytes_total",
        "Keys and values written to disk since the model was loaded.",
        "disk_written_bytes",
    ),
)
"""(name without "hearth_", help, field of `EngineStats`) of metrics with a sample per engine."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples.

    Attributes:
        name: includes the unit; a counter's name ends with "_total".
        help: one line about what is measured.
        samples: (labels, value); if nothing was measured, the value is None and the sample is left
            out.
    """

    name: str
    help: str
    samples: Sequence[tuple[Labels, float | Histogram | None]] = ()

    @property
    def kind(self) -> str:
        """The metric's type in Prometheus."""
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if isinstance(self.samples[0][1], Histogram) else "gauge"


def families(metrics: Metrics, stats: HostStats | None) -> list[Family]:
    """All metrics for Prometheus; `stats` is None if the host does not respond."""
    by_route = [({"route": one.route, "model": one.model}, one) for one in metrics.series()]
    workers = [({"model": name}, one) for name, one in named(stats.workers if stats else ())]
    engines = [(labels, one.engine) for labels, one in workers if one.engine is not None]
    states = [
        (labels | {"state": state}, tokens, bytes_by_state(engine)[state])
        for labels, engine in engines
        for state, tokens in tokens_by_state(engine).items()
    ]
    single: dict[str, tuple[str, float | None]] = {
        "host_up": ("1 if the host process responds, else 0.", int(stats is not None)),
        "uptime_seconds": ("Time since the server started.", metrics.uptime_s),
        "requests_running": ("Running requests.", metrics.running),
        "requests_per_second": (
            f"Mean rate of requests that ended in the last {WINDOW_S} s.",
            metrics.requests_per_s,
        ),
        "generated_tokens_per_second": (
            f"Mean rate of generated tokens of all requests in the last {WINDOW_S} s.",
            metrics.tokens_per_s,
        ),
        "cache_hit_ratio": (
            "Cached prompt tokens over prompt tokens.",
            cache_hit_rate(metrics.total()),
        ),
    }
    tables: tuple[tuple[Any, Any], ...] = (
        (_OF_ROUTES, by_route),
        (_OF_MODELS, workers),
        (_OF_ENGINES, engines),
    )
    return [
        *(Family(f"hearth_{name}", text, [({}, value)]) for name, (text, value) in single.items()),
        Family(
            "hearth_requests_total",
            "Requests that ended, by status class.",
            [
                (labels | {"status": status}, count)
                for labels, series in by_route
                for status, count in sorted(series.statuses.items())
            ],
        ),
        *(
            Family(f"hearth_{name}", text, [(labels, getattr(one, field)) for labels, one in items])
            for table, items in tables
            for name, text, field in table
        ),
        Family(
            "hearth_batch_utilization_ratio",
            "Mean number of sequences in a step over the maximum.",
            [(labels, batch_utilization([worker])) for labels, worker in workers],
        ),
        Family(
            "hearth_drafted_tokens_total",
            "Tokens guessed before a step, by position in the draft, from 1.",
            _by_position([(labels, engine.drafted_tokens) for labels, engine in engines]),
        ),
        Family(
            "hearth_accepted_draft_tokens_total",
            "Guessed tokens that were right, by position in the draft, from 1.",
            _by_position([(labels, engine.accepted_tokens) for labels, engine in engines]),
        ),
        Family(
            "hearth_drafts_total",
            "Guessed tokens by what guessed them, and whether they were right.",
            [
                (labels | {"drafter": by, "right": right}, count)
                for labels, engine in engines
                for by, (drafted, accepted) in sorted(engine.drafts_by.items())
                for right, count in (("yes", accepted), ("no", drafted - accepted))
            ],
        ),
        Family(
            "hearth_tokens_per_step",
            "Tokens that a sequence generated in a step, on average; 1 without drafts.",
            [(labels, engine.tokens_a_step or None) for labels, engine in engines],
        ),
        Family(
            "hearth_kv_tokens",
            "Tokens in the KV cache, by state.",
            [(labels, tokens) for labels, tokens, _ in states],
        ),
        Family(
            "hearth_kv_bytes",
            "Bytes of the KV cache, by state.",
            [(labels, count) for labels, _, count in states],
        ),
    ]


def _by_position(
    counts: Iterable[tuple[dict[str, str], tuple[int, ...]]],
) -> list[tuple[dict[str, str], float | None]]:
    """A sample for each position of drafts."""
    return [
        (labels | {"position": str(position)}, count)
        for labels, by_position in counts
        for position, count in enumerate(by_position, 1)
    ]


def exposition(families: Iterable[Family]) -> bytes:
    """The text of all `families` that have samples."""
    lines: list[str] = []
    for family in families:
        name = family.name
        measured = [(labels, value) for labels, value in family.samples if value is not None]
        if measured:
            lines.append(f"# HELP {name} {family.help}")
            lines.append(f"# TYPE {name} {family.kind}")
        for labels, value in measured:
            lines += _lines(name, labels, value)
    # Labels may contain file names that are not valid Unicode.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _lines(name: str, labels: Labels, value: float | Histogram) -> Iterator[str]:
    if not isinstance(value, Histogram):
        yield f"{name}{_braced(labels)} {value!r}"
        return
    for edge, count in value.cumulative():
        yield f"{name}_bucket{_braced({**labels, 'le': repr(edge)})} {count}"
    yield f"{name}_bucket{_braced({**labels, 'le': '+Inf'})} {value.count}"
    yield f"{name}_sum{_braced(labels)} {value.sum_s!r}"
    yield f"{name}_count{_braced(labels)} {value.count}"


def _braced(labels: Labels) -> str:
    parts = [f'{name}="{value.translate(_LABEL)}"' for name, value in labels.items()]
    return f"{{{','.join(parts)}}}" if parts else ""


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
    models: list[dict[str, Any]] = [
        {
            "model": name,
            "running": worker.running,
            "waiting": worker.waiting,
            "restarts": worker.restarts,
            "batch_utilization": batch_utilization([worker]),
            "kv": _kv(worker.engine) if worker.engine is not None else None,
        }
        for name, worker in named(workers)
    ]
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


def _kv(engine: EngineStats) -> dict[str, int]:
    """Tokens and bytes by state."""
    return {
        **{f"{state}_tokens": count for state, count in tokens_by_state(engine).items()},
        **{f"{state}_bytes": count for state, count in bytes_by_state(engine).items()},
    }


def batch_utilization(workers: Iterable[WorkerStats]) -> float | None:
    """The mean number of sequences in a step as a share of the maximum, in [0, 1].

    None before the first step.
    """
    rows = capacity = 0
    for worker in workers:
        if worker.engine is not None and worker.info is not None:
            rows += worker.engine.rows
            capacity += worker.engine.steps * worker.info.max_sessions
    return rows / capacity if capacity else None
