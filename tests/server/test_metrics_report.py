"""`GET /metrics`: Prometheus' own parser reads the text, and every figure is a measured one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import asgi
from counted import counting
from endpoints import Endpoint
from fake_host import ENGINE, INFO
from hearth.app.server.metrics import Metrics
from hearth.app.server.monitoring import Family, as_json, exposition, families
from hearth.backends.contract.events import Started, Token
from hearth.backends.contract.loaded import EngineStats, HostStats, ModelInfo, WorkerStats

CHAT = "/v1/chat/completions"
WORKER = WorkerStats("tiny", "/models/tiny.gguf", 1, 2, 3, 4, 0.0)
LOADED = replace(
    WORKER,
    info=ModelInfo(name="tiny", path=WORKER.path, **{**INFO, "max_sessions": 4}),
    engine=EngineStats(
        **{
            **ENGINE,
            "live_tokens": 10,
            "kept_tokens": 30,
            "pinned_tokens": 5,
            "offloaded_tokens": 7,
            "disk_tokens": 9,
            "disk_bytes": 9 * 256,
            "disk_read_tokens": 6,
            "disk_written_bytes": 5000,
            "generated_tokens": 15,
            "drafted_tokens": (8, 4),
            "accepted_tokens": (4, 1),
            "drafts_by": {"ngram": (12, 5)},
        },
        steps=10,
        rows=20,
    ),
)


def stats(*workers: WorkerStats) -> HostStats:
    return HostStats(1, "0", 0.0, 1, workers)


def read(text: bytes) -> dict[str, list[Sample]]:
    """The samples by their names."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def samples(metrics: Metrics, *workers: WorkerStats) -> dict[str, list[Sample]]:
    return read(exposition(families(metrics, stats(*workers))))


def value(found: dict[str, list[Sample]], name: str, **labels: str) -> float:
    [sample] = [s for s in found[f"hearth_{name}"] if labels.items() <= s.labels.items()]
    return sample.value


def test_two_chats_are_two_requests(endpoint) -> None:
    steps = [
        {"prompt_tokens": 7, "cached_tokens": 3},
        {"text": "Hi"},
        {"reasoning": " so"},
        {"call": {"position": 0, "id": "a", "name": "f", "arguments": "{}"}},
        {"finish": "stop", "cached_tokens": 3},
    ]
    made = endpoint(steps, steps)
    for times in (1, 2):
        assert made.chat().status == 200
        found = read(made.get("/metrics").body)
        labels = {"route": CHAT, "model": "tiny"}
        assert value(found, "requests_total", **labels, status="2xx") == times
        assert value(found, "time_to_first_token_seconds_count", **labels) == times
        assert value(found, "inter_token_seconds_count", **labels) == 2 * times
        assert value(found, "request_duration_seconds_count", **labels) == times
        assert value(found, "request_duration_seconds_sum", **labels) > 0
        assert value(found, "prompt_tokens_total", **labels) == 7 * times
        assert value(found, "cached_tokens_total", **labels) == 3 * times
        assert value(found, "generated_tokens_total", **labels) == 3 * times
        assert value(found, "requests_running") == 0
        assert value(found, "requests_per_second") > 0
        assert value(found, "generated_tokens_per_second") > 0
        assert value(found, "cache_hit_ratio") == pytest.approx(3 / 7)


def test_refusals_and_failures(endpoint) -> None:
    failed = [{"error": {"code": code, "message": "No."}} for code in ("busy", "worker_died")]
    made = endpoint(*([step] for step in failed))
    assert [made.chat().status for _ in failed] == [429, 503]
    found = read(made.get("/metrics").body)
    assert value(found, "requests_total", status="4xx") == 1
    assert value(found, "requests_total", status="5xx") == 1
    assert value(found, "requests_refused_total") == 1
    assert value(found, "requests_failed_total") == 1
    assert value(found, "requests_cancelled_total") == 0
    assert value(found, "request_duration_seconds_count") == 0


def test_json_for_those_who_accept_it(endpoint) -> None:
    made = endpoint([{"prompt_tokens": 7}, {"text": "a"}, {"text": "b"}, {"finish": "stop"}])
    made.chat()
    for accept in ("application/json", "text/html, Application/JSON;q=0.9"):
        answer = made.get("/metrics", (*asgi.JSON, ("accept", accept)))
        assert answer.headers["content-type"] == "application/json"
    found = answer.json
    assert (found["requests_total"], found["requests_by_status"]) == (1, {"2xx": 1})
    assert found["ttft_s"]["count"] == found["inter_token_s"]["count"] == 1
    for summary in (found["latency_s"], found["ttft_s"], found["inter_token_s"]):
        assert summary["avg"] == summary["p50"] == summary["p99"] > 0
    [route] = found["by_route"]
    assert (route["route"], route["model"], route["generated_tokens"]) == (CHAT, "tiny", 2)
    assert found["host_up"] is True and found["uptime_s"] > 0


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"])
def test_text_for_the_others(endpoint, accept) -> None:
    answer = endpoint().get("/metrics", (*asgi.JSON, ("accept", accept)))
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_nothing_measured_is_null(endpoint) -> None:
    found = endpoint().get("/metrics", (*asgi.JSON, ("accept", "application/json"))).json
    assert found["ttft_s"] == {"count": 0, "avg": None, "p50": None, "p95": None, "p99": None}
    assert found["cache_hit_rate"] is found["batch_utilization"] is found["kv"] is None
    assert found["by_route"] == found["models"] == []


def test_without_a_host_the_servers_own_figures_stand(endpoint) -> None:
    made: Endpoint = endpoint(unreachable="It is away.")
    assert made.chat().status == 503
    found = read(made.get("/metrics").body)
    assert value(found, "host_up") == 0
    assert "hearth_uptime_seconds" in found and "hearth_model_running" not in found
    answer = made.get("/metrics", (*asgi.JSON, ("accept", "application/json")))
    assert (answer.status, answer.json["host_up"]) == (200, False)


def test_what_the_host_says_of_its_models() -> None:
    found = samples(Metrics(), LOADED, replace(WORKER, name="loading", restarts=0))
    of_tiny = {"model": "tiny"}
    assert value(found, "model_running", **of_tiny) == 2
    assert value(found, "model_waiting", **of_tiny) == 3
    assert value(found, "worker_restarts_total", **of_tiny) == 4
    assert value(found, "batch_utilization_ratio", **of_tiny) == 20 / (10 * 4)
    states = {
        "live": 10,
        "kept": 25,
        "pinned": 5,
        "offloaded": 7,
        "disk": 9,
        "allocated": 512,
        "pool": 4096,
    }
    for state, tokens in states.items():
        assert value(found, "kv_tokens", **of_tiny, state=state) == tokens
        assert value(found, "kv_bytes", **of_tiny, state=state) == tokens * 256
    assert value(found, "kv_disk_read_tokens_total", **of_tiny) == 6
    assert value(found, "kv_disk_written_bytes_total", **of_tiny) == 5000
    windows = replace(LOADED.engine, window_bytes=1000, window_pool_bytes=9000)
    with_windows = samples(Metrics(), replace(LOADED, engine=windows))
    for state, more in {"live": 0, "allocated": 1000, "pool": 9000}.items():
        found_bytes = value(with_windows, "kv_bytes", **of_tiny, state=state)
        assert found_bytes == states[state] * 256 + more
    assert value(found, "model_waiting", model="loading") == 3
    assert len(found["hearth_kv_tokens"]) == len(states)
    assert len(found["hearth_batch_utilization_ratio"]) == 1


def test_the_models_in_json() -> None:
    busier = replace(LOADED, engine=replace(LOADED.engine, steps=5, rows=20), path="/b.gguf")
    found = as_json(Metrics(), stats(LOADED, busier, replace(WORKER, name="loading")))
    assert [model["model"] for model in found["models"]] == ["tiny", "tiny (2)", "loading"]
    assert [model["batch_utilization"] for model in found["models"]] == [0.5, 1.0, None]
    assert found["batch_utilization"] == pytest.approx(40 / 60)
    assert (found["queue"], found["worker_restarts"]) == (9, 12)
    assert found["kv"]["kept_tokens"] == 50 and found["kv"]["pinned_bytes"] == 10 * 256
    assert found["models"][2]["kv"] is None


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", 'a\\n"\n\\', "ключ", 'x"} 1\nhearth_host_up 0\n#']
)
def test_no_name_escapes_its_label(name) -> None:
    found = samples(Metrics(), replace(LOADED, name=name))
    assert value(found, "model_running", model=name) == 2
    assert value(found, "host_up") == 1


def test_two_files_of_one_name_are_two_series() -> None:
    found = samples(Metrics(), LOADED, replace(LOADED, path="/other/tiny.gguf"))
    names = [sample.labels["model"] for sample in found["hearth_model_running"]]
    assert names == ["tiny", "tiny (2)"]


def test_a_name_that_is_no_unicode_breaks_nothing() -> None:
    assert value(samples(Metrics(), replace(LOADED, name="a\udcff")), "model_running") == 2


def test_every_family_is_named_once_and_histograms_are_cumulative() -> None:
    metrics = Metrics()
    for model in ("a", "b"):
        recorder = metrics.begin(CHAT, model)
        count = counting(recorder)
        for event in (Started(7, 3), Token("a", (1,)), Token("b", (2,))):
            count(event)
        recorder.end(200)
    text = exposition(families(metrics, stats(LOADED))).decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    found = read(text.encode())
    for histogram in ("request_duration", "time_to_first_token", "inter_token"):
        name = f"hearth_{histogram}_seconds"
        for model in ("a", "b"):
            buckets = [s for s in found[f"{name}_bucket"] if s.labels["model"] == model]
            edges = [float(s.labels["le"]) for s in buckets]
            counts = [s.value for s in buckets]
            assert edges == sorted(edges) and edges[-1] == math.inf
            assert counts == sorted(counts)
            assert counts[-1] == value(found, f"{histogram}_seconds_count", model=model) == 1


def test_a_family_without_samples_is_left_out() -> None:
    assert exposition([Family("hearth_x", "Nothing.")]) == b""


def test_several_prompts_are_one_request(endpoint) -> None:
    steps = [{"prompt_tokens": 7}, {"text": "Hi"}, {"finish": "stop"}]
    made = endpoint(steps, steps)
    assert made.complete(prompt=["a", "b"]).status == 200
    found = read(made.get("/metrics").body)
    assert value(found, "requests_total", status="2xx") == 1
    assert value(found, "request_duration_seconds_count") == 1
    assert value(found, "time_to_first_token_seconds_count") == 1
    assert value(found, "prompt_tokens_total") == 14
    assert value(found, "generated_tokens_total") == 2
    assert value(found, "requests_running") == 0


def test_one_prompt_that_fails_is_one_failure_and_nobody_left(endpoint) -> None:
    dead = {"error": {"code": "worker_died", "message": "dead"}}
    made = endpoint([{"prompt_tokens": 7}, {"wait": True}], [{"prompt_tokens": 7}, dead])
    assert made.complete(prompt=["a", "b"]).status == 503
    found = read(made.get("/metrics").body)
    assert value(found, "requests_total") == 1
    assert value(found, "requests_failed_total") == 1
    assert value(found, "requests_cancelled_total") == 0


def test_tokens_of_vectors_are_counted(endpoint) -> None:
    made = endpoint()
    assert made.post("/v1/embeddings", {"model": "tiny", "input": "abc"}).status == 200
    found = read(made.get("/metrics").body)
    assert value(found, "prompt_tokens_total", route="/v1/embeddings", model="tiny") == 7


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}),
        ("/api/chat", {}),
    ],
)
def test_what_generates_nothing_is_counted_whether_it_goes_well_or_not(
    endpoint, path, body
) -> None:
    made = endpoint()
    assert made.post(path, {"model": "tiny", **body}).status == 200
    assert made.post(path, {"model": "tiny", **body, "modell": 1}).status == 400
    found = read(made.get("/metrics").body)
    assert value(found, "requests_total", route=path, status="2xx") == 1
    assert value(found, "requests_total", route=path, status="4xx") == 1
