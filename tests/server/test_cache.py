"""`/v1/cache`: the caches of loaded models, and clearing them."""

from __future__ import annotations

import pytest

KEPT = {
    "live_tokens": 100,
    "kept_tokens": 3000,
    "pinned_tokens": 1000,
    "kept_prefixes": 4,
    "offloaded_tokens": 500,
    "offloaded_prefixes": 2,
    "disk_tokens": 20,
    "disk_bytes": 25_000,
    "disk_read_tokens": 15,
    "disk_written_bytes": 30_000,
    "drafted_tokens": (8, 4),
    "accepted_tokens": (4, 1),
    "drafts_by": {"ngram": (10, 5), "draft": (2, 0)},
    "declined_drafts": 3,
    "kv_bytes_per_token": 1000,
    "cached_tokens": 600,
    "computed_tokens": 500,
    "generated_tokens": 100,
}


def worker(path, name="tiny", **more):
    return {"name": name, "path": str(path), "info": {}, "engine": KEPT, **more}


def delete(made, path="/v1/cache"):
    return made.send("DELETE", path)


@pytest.fixture
def two(endpoint, tiny_model):
    """Two loaded models, and one that is loading."""
    other = {**KEPT, "kept_prefixes": 1, "cached_tokens": 0, "pinned_tokens": 0}
    other |= {"offloaded_tokens": 0, "offloaded_prefixes": 0}
    return endpoint(
        workers=[
            worker(tiny_model),
            worker("/elsewhere/other.gguf", "other", engine=other),
            worker("/elsewhere/late.gguf", "late", info=None, engine=None),
        ]
    )


def test_what_is_kept_by_tier_and_model(two) -> None:
    found = two.get("/v1/cache/stats").json
    assert (found["total_entries"], found["total_size_mb"]) == (7, 6.5)
    assert found["hit_rate"] == 600 / (600 + 400 + 400)
    assert found["tiers"] == {
        "live": {"tokens": 200, "size_mb": 0.2},
        "kept": {"tokens": 5000, "size_mb": 5.0},
        "pinned": {"tokens": 1000, "size_mb": 1.0},
        "offloaded": {"tokens": 500, "size_mb": 0.5},
        "disk": {"tokens": 40, "size_mb": 0.05},
    }
    assert (found["disk_read_tokens"], found["disk_written_mb"]) == (30, 0.06)
    assert found["speculation"] == {
        "drafted_tokens": [16, 8],
        "accepted_tokens": [8, 2],
        "acceptance": [0.5, 0.25],
        "tokens_per_step": 200 / 190,
        "drafters": {
            "ngram": {"drafted": 20, "accepted": 10},
            "draft": {"drafted": 4, "accepted": 0},
        },
        "declined_drafts": 6,
    }
    first, second = found["models"]
    assert (first["model"], first["total_entries"], first["hit_rate"]) == ("tiny", 6, 0.6)
    assert (second["model"], second["hit_rate"], second["tiers"]["pinned"]["tokens"]) == (
        *("other", 0.0),
        0,
    )


def test_one_model_by_name(two) -> None:
    found = two.get("/v1/cache/stats?model=TINY").json
    assert [model["model"] for model in found["models"]] == ["tiny"]
    assert found["total_entries"] == 6


def test_nothing_loaded_is_nothing_kept(endpoint) -> None:
    found = endpoint().get("/v1/cache/stats").json
    assert (found["total_entries"], found["total_size_mb"], found["hit_rate"]) == (0, 0, None)
    assert found["models"] == []


def test_clearing_says_what_it_freed(two) -> None:
    found = delete(two).json
    assert (found["freed_entries"], found["freed_size_mb"]) == (7, 6.5)
    assert [model["model"] for model in found["models"]] == ["tiny", "other"]
    assert found["models"][0]["freed_tokens"] == 3500
    assert found["freed_disk_mb"] == 0.05
    left = two.get("/v1/cache/stats").json
    assert (left["total_entries"], left["total_size_mb"]) == (0, 0)
    assert left["tiers"]["live"]["tokens"] == 200
    again = delete(two).json
    assert (again["freed_entries"], again["freed_size_mb"]) == (0, 0)


def test_clearing_one_leaves_the_others(two) -> None:
    assert [model["model"] for model in delete(two, "/v1/cache?model=tiny").json["models"]] == [
        "tiny"
    ]
    assert two.host.cleared == ["tiny"]
    assert two.get("/v1/cache/stats").json["total_entries"] == 1


def test_clearing_loads_nothing(endpoint) -> None:
    made = endpoint()
    answer = delete(made, "/v1/cache?model=guide")
    assert (answer.status, answer.json["models"], made.host.specs) == (200, [], [])


def test_one_that_was_unloaded_meanwhile_is_no_error(two, monkeypatch) -> None:
    clear = two.host.clear_cache

    async def and_unload_the_other(model, *, load=True):
        left = await clear(model, load=load)
        two.host.workers = [w for w in two.host.workers if w.name != "other"]
        return left

    monkeypatch.setattr(two.host, "clear_cache", and_unload_the_other)
    found = delete(two).json
    assert [model["model"] for model in found["models"]] == ["tiny"]
    assert two.host.specs == []


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("model=gpt-4", 404, "model"), ("model=", 400, "model")],
)
def test_what_is_not_known_is_refused_by_name(endpoint, query, status, param) -> None:
    made = endpoint()
    for answer in (made.get(f"/v1/cache/stats?{query}"), delete(made, f"/v1/cache?{query}")):
        assert (answer.status, answer.error["param"]) == (status, param)
