"""`GET /health`: whether the server is ready; and `GET /metrics`: its measurements and those of the
loaded models, in Prometheus' text format, version 0.0.4, or as JSON for clients that accept it.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

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
_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels = Mapping[str, str]


async def health(http: Request) -> Response:
    """`{"status", "version", "backends"}`: 200 and "ok" if requests are accepted and the host
    responds, 503 and "loading" or "draining" otherwise. `backends` maps the backend of each loaded
    model to the version of its library.

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
    # Prometheus does not name JSON.
    if any(kind.partition(";")[0].strip().lower() == "application/json" for kind in accepted):
        return JSONResponse(as_json(services.metrics, stats))
    content = exposition(families(services.metrics, stats))
    return Response(content, headers={"content-type": CONTENT_TYPE})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples.

    Attributes:
        name: with its unit; a counter's ends in "_total".
        help: one line on what is measured.
        samples: (labels, value); None: nothing was measured, and the sample is left out.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float | Histogram | None]] = ()


def families(metrics: Metrics, stats: HostStats | None) -> list[Family]:
    """All metrics for Prometheus; `stats` None: the host does not respond."""
    whole: Labels = {}
    by_route = [({"route": one.route, "model": one.model}, one) for one in metrics.series()]
    workers = [({"model": name}, one) for name, one in named(stats.workers if stats else ())]
    engines = [(labels, one.engine) for labels, one in workers if one.engine is not None]
    return [
        Family(
            "hearth_host_up",
            "gauge",
            "1 if the host process responds, else 0.",
            [(whole, int(stats is not None))],
        ),
        Family(
            "hearth_uptime_seconds",
            "gauge",
            "Time since the server started.",
            [(whole, metrics.uptime_s)],
        ),
        Family("hearth_requests_running", "gauge", "Running requests.", [(whole, metrics.running)]),
        Family(
            "hearth_requests_per_second",
            "gauge",
            f"Mean rate of requests that ended in the last {WINDOW_S} s.",
            [(whole, metrics.requests_per_s)],
        ),
        Family(
            "hearth_generated_tokens_per_second",
            "gauge",
            f"Mean rate of generated tokens of all requests in the last {WINDOW_S} s.",
            [(whole, metrics.tokens_per_s)],
        ),
        Family(
            "hearth_cache_hit_ratio",
            "gauge",
            "Cached prompt tokens over prompt tokens.",
            [(whole, cache_hit_rate(metrics.total()))],
        ),
        Family(
            "hearth_requests_total",
            "counter",
            "Requests that ended, by status class.",
            [
                ({**labels, "status": status}, count)
                for labels, series in by_route
                for status, count in sorted(series.statuses.items())
            ],
        ),
        Family(
            "hearth_requests_refused_total",
            "counter",
            "Requests refused as too many were waiting (429).",
            [(labels, series.refused) for labels, series in by_route],
        ),
        Family(
            "hearth_requests_cancelled_total",
            "counter",
            "Requests whose client disconnected (499).",
            [(labels, series.cancelled) for labels, series in by_route],
        ),
        Family(
            "hearth_requests_failed_total",
            "counter",
            "Requests that ended with status 500 or above.",
            [(labels, series.failed) for labels, series in by_route],
        ),
        Family(
            "hearth_prompt_tokens_total",
            "counter",
            "Prompt tokens.",
            [(labels, series.prompt_tokens) for labels, series in by_route],
        ),
        Family(
            "hearth_cached_tokens_total",
            "counter",
            "Prompt tokens read from the cache.",
            [(labels, series.cached_tokens) for labels, series in by_route],
        ),
        Family(
            "hearth_generated_tokens_total",
            "counter",
            "Generated tokens.",
            [(labels, series.generated_tokens) for labels, series in by_route],
        ),
        Family(
            "hearth_request_duration_seconds",
            "histogram",
            "Duration of successful requests.",
            [(labels, series.latency) for labels, series in by_route],
        ),
        Family(
            "hearth_time_to_first_token_seconds",
            "histogram",
            "Time from arrival to the first token.",
            [(labels, series.ttft) for labels, series in by_route],
        ),
        Family(
            "hearth_inter_token_seconds",
            "histogram",
            "Time from one token of an answer to the next.",
            [(labels, series.inter_token) for labels, series in by_route],
        ),
        Family(
            "hearth_model_running",
            "gauge",
            "Running sequences.",
            [(labels, worker.running) for labels, worker in workers],
        ),
        Family(
            "hearth_model_waiting",
            "gauge",
            "Waiting requests.",
            [(labels, worker.waiting) for labels, worker in workers],
        ),
        Family(
            "hearth_worker_restarts_total",
            "counter",
            "Restarts of the model's worker process.",
            [(labels, worker.restarts) for labels, worker in workers],
        ),
        Family(
            "hearth_batch_utilization_ratio",
            "gauge",
            "Mean number of sequences in a step over the maximum.",
            [(labels, batch_utilization([worker])) for labels, worker in workers],
        ),
        Family(
            "hearth_drafted_tokens_total",
            "counter",
            "Tokens guessed before a step, by position in the draft, from 1.",
            _by_position([(labels, engine.drafted_tokens) for labels, engine in engines]),
        ),
        Family(
            "hearth_accepted_draft_tokens_total",
            "counter",
            "Guessed tokens that were right, by position in the draft, from 1.",
            _by_position([(labels, engine.accepted_tokens) for labels, engine in engines]),
        ),
        Family(
            "hearth_drafts_total",
            "counter",
            "Guessed tokens by what guessed them, and whether they were right.",
            [
                ({**labels, "drafter": by, "right": right}, count)
                for labels, engine in engines
                for by, (drafted, accepted) in sorted(engine.drafts_by.items())
                for right, count in (("yes", accepted), ("no", drafted - accepted))
            ],
        ),
        Family(
            "hearth_declined_drafts_total",
            "counter",
            "Drafts that were not used, because they would not have paid.",
            [(labels, engine.declined_drafts) for labels, engine in engines],
        ),
        Family(
            "hearth_tokens_per_step",
            "gauge",
            "Tokens that a sequence generated in a step, on average; 1 without drafts.",
            [(labels, engine.tokens_a_step or None) for labels, engine in engines],
        ),
        Family(
            "hearth_kv_tokens",
            "gauge",
            "Tokens in the KV cache, by state.",
            [
                ({**labels, "state": state}, count)
                for labels, engine in engines
                for state, count in tokens_by_state(engine).items()
            ],
        ),
        Family(
            "hearth_kv_bytes",
            "gauge",
            "Bytes of the KV cache, by state.",
            [
                ({**labels, "state": state}, count)
                for labels, engine in engines
                for state, count in bytes_by_state(engine).items()
            ],
        ),
        Family(
            "hearth_kv_disk_read_tokens_total",
            "counter",
            "Tokens copied from disk into the KV cache since the model was loaded.",
            [(labels, engine.disk_read_tokens) for labels, engine in engines],
        ),
        Family(
            "hearth_kv_disk_written_bytes_total",
            "counter",
            "Keys and values written to disk since the model was loaded.",
            [(labels, engine.disk_written_bytes) for labels, engine in engines],
        ),
    ]


def _by_position(
    counts: Iterable[tuple[dict[str, str], tuple[int, ...]]],
) -> list[tuple[dict[str, str], float | None]]:
    """A sample for each position of drafts."""
    return [
        ({**labels, "position": str(position)}, count)
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
            lines.append(f"# HELP {name} {family.help.translate(_HELP)}")
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
    """The mean number of sequences in a step as a share of the maximum, in [0, 1]; None before the
    first step.
    """
    rows = capacity = 0
    for worker in workers:
        if worker.engine is not None and worker.info is not None:
            rows += worker.engine.rows
            capacity += worker.engine.steps * worker.info.max_sessions
    return rows / capacity if capacity else None
