"""`hearth ps` and `hearth stop`: what is loaded, and how it goes."""

from __future__ import annotations

import pytest

from hearth.app import format as words

ENGINE = {
    "running": 2,
    "waiting": 1,
    "pool_tokens": 8192,
    "allocated_tokens": 2048,
    "live_tokens": 1500,
    "kept_tokens": 200,
    "kept_prefixes": 3,
    "kv_bytes_per_token": 1000,
}


def worker(name="tiny", **more):
    known = {"name": name, "path": f"/models/{name}.gguf", "pid": 77, "info": {}}
    return {**known, "idle_s": 30.0, "keep_alive_s": 300.0, **more}


def cells(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell.strip()]


def test_what_a_busy_model_holds(hearth) -> None:
    busy = worker(running=2, waiting=1, restarts=4, idle_s=0.0, engine=ENGINE)
    head, row = hearth("ps", workers=[busy]).out.splitlines()
    found = dict(zip(map(str.strip, cells(head)), map(str.strip, cells(row)), strict=True))
    assert found == {
        "NAME": "tiny",
        "PID": "77",
        "STATE": "generating",
        "RUNNING": "2",
        "WAITING": "1",
        "KV LIVE": "1,500",
        "KV KEPT": "200",
        "KV POOL": "8,192",
        "KV MEMORY": "2.0 MB",
        "RESTARTS": "4",
        "IDLE": "-",
        "UNLOADS IN": "-",
    }


def test_an_idle_model_says_when_it_is_unloaded(hearth) -> None:
    result = hearth("ps", workers=[worker()])
    assert "30 s" in result.out and "4 min 30 s" in result.out
    never = hearth("ps", workers=[worker(keep_alive_s=-1.0)])
    assert cells(never.out.splitlines()[1])[-1].strip() == "-"


def test_a_model_that_waits_for_room_has_no_process_yet(hearth) -> None:
    queued = worker(pid=0, info=None, idle_s=0.0, waiting=3)
    row = hearth("ps", workers=[queued]).out.splitlines()[1]
    assert [cell.strip() for cell in cells(row)][:5] == ["tiny", "-", "queued", "0", "3"]


def test_a_model_that_somebody_waits_for_is_not_idle(hearth) -> None:
    (model,) = hearth("ps", "--json", workers=[worker(waiting=1)]).json["workers"]
    assert (model["state"], model["unload_in_s"]) == ("generating", None)


def test_a_model_that_loads_has_no_figures_yet(hearth) -> None:
    result = hearth("ps", workers=[worker(info=None, waiting=1)])
    assert "loading" in result.out
    assert hearth("ps", "--json", workers=[worker(info=None)]).json["workers"][0]["kv"] is None


def test_json(hearth) -> None:
    found = hearth("ps", "--json", workers=[worker(engine=ENGINE, idle_s=1.0)]).json
    assert found["running"] is True and found["pid"] == 1
    (model,) = found["workers"]
    assert (model["state"], model["unload_in_s"]) == ("idle", 299.0)
    assert model["kv"] == {
        "live_bytes": 1_500_000,
        "kept_bytes": 200_000,
        "allocated_bytes": 2_048_000,
        "pool_bytes": 8_192_000,
    }


def test_layers_with_windows_count_beside_tokens(hearth) -> None:
    engine = {**ENGINE, "window_bytes": 500_000, "window_pool_bytes": 2_000_000}
    (model,) = hearth("ps", "--json", workers=[worker(engine=engine)]).json["workers"]
    assert model["kv"] == {
        "live_bytes": 1_500_000,
        "kept_bytes": 200_000,
        "allocated_bytes": 2_548_000,
        "pool_bytes": 10_192_000,
    }
    assert "2.5 MB" in hearth("ps", workers=[worker(engine=engine)]).out


@pytest.mark.parametrize("command", [("ps",), ("stop", "tiny"), ("stop", "--all")])
def test_without_a_host_nothing_is_started(hearth, command) -> None:
    result = hearth(*command, no_host=True)
    assert (result.code, result.out) == (0, "")
    assert "No host is running" in result.err


def test_without_a_host_json_says_so(hearth) -> None:
    assert hearth("ps", "--json", no_host=True).json == {"running": False, "workers": []}


@pytest.mark.parametrize("command", ["ps", "stop"])
def test_a_host_that_does_not_answer_is_an_error(hearth, command) -> None:
    arguments = ("stop", "--all") if command == "stop" else ("ps",)
    assert hearth(*arguments, unreachable="It does not answer.").code == 1


@pytest.mark.parametrize("name", ["tiny", "TINY", "/models/tiny.gguf"])
def test_one_model_is_unloaded(hearth, name) -> None:
    result = hearth("stop", name, workers=[worker(), worker("other")])
    assert (result.code, result.out) == (0, "unloaded tiny\n")
    assert result.host.unloaded == ["/models/tiny.gguf"]


def test_all_models_are_unloaded(hearth) -> None:
    result = hearth("stop", "--all", workers=[worker(), worker("other", running=2)])
    assert result.out == "unloaded tiny\nunloaded other\n"
    assert "2 running requests" in result.err
    assert "Nothing is loaded" in hearth("stop", "--all").err


def test_a_model_that_is_not_loaded_is_an_error_with_a_guess(hearth) -> None:
    result = hearth("stop", "tinny", workers=[worker()])
    assert result.code == 3 and "tiny?" in result.err
    assert result.host.unloaded == []


@pytest.mark.parametrize("arguments", [(), ("tiny", "--all")])
def test_one_or_all_it_must_be(hearth, arguments) -> None:
    assert hearth("stop", *arguments, workers=[worker()]).code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (90, "1 min 30 s"), (3600, "1 h 0 min"), (7300, "2 h 1 min")],
)
def test_durations(seconds, text) -> None:
    assert words.duration(seconds) == text
