"""`hearth fit`: of models that are here, of the catalogue, and of the Hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hearth.app.cli import commands
from hearth.app.library import fit as fits
from hearth.app.library.hub import Hub, Repository, RepositoryFile
from hearth.app.machine import this_machine

GB = 10**9
REPO = "somebody/Some-8B-GGUF"


@pytest.fixture(autouse=True)
def measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 GB are free, and memory was timed before."""
    machine = this_machine()
    cache = home / "cache"
    cache.mkdir()
    stored = {
        "bytes_per_s": 20e9,
        "threads": machine.usable_cores,
        "cpu": machine.cpu,
        "date": "2026-11-21",
    }
    (cache / "bandwidth.json").write_text(json.dumps(stored))
    monkeypatch.setattr(fits, "available_bytes", lambda: 12 * GB)
    monkeypatch.setattr(fits, "_LEAST_READ_BYTES", 1)  # The speed of small models is not estimated.
    monkeypatch.setenv("HF_HOME", str(home / "hf"))


def hub_with(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    files = tuple(
        RepositoryFile(f"Some-8B-{quant}.gguf", size, None, "0" * 40)
        for quant, size in sizes.items()
    )
    found = Repository(REPO, "main", "0" * 40, False, "mit", files, 8_000_000_000, 32_768)
    monkeypatch.setattr(Hub, "repository", lambda *_: found)


def test_a_model_that_is_here(hearth) -> None:
    result = hearth("fit", "tiny")
    assert result.code == 0
    assert "fits" in result.out and "weights" in result.out
    assert "20.0 GB/s" in result.out and "2026-11-21" in result.out
    assert "GPU" in result.out and "give or take" not in result.out


def test_the_same_as_json(hearth) -> None:
    (found,) = hearth("fit", "tiny", "--json").json["fits"]
    assert (found["name"], found["state"], found["kv_type"]) == ("tiny", "fits", "f16")
    assert found["uncertain_bytes"] == found["download_bytes"] == 0
    assert found["context"] == found["largest_context"] == 512
    assert found["speed"]["tok_per_s"] > 0


def test_a_context_and_a_type_of_keys_and_values(hearth) -> None:
    arguments = ("fit", "tiny", "--ctx", "4096", "--json", "--kv-type")
    needs = [hearth(*arguments, kind).json["fits"][0]["needed_bytes"] for kind in ("f32", "f16")]
    assert needs[0] > needs[1]


@pytest.mark.parametrize("model", [("tiny",), ("--params", "7B")], ids=" ".join)
def test_values_of_another_type_than_keys(hearth, monkeypatch, model) -> None:
    arguments = ("fit", *model, "--ctx", "512", "--json")

    def sizing(*flags: str) -> dict[str, int | str]:
        answer = hearth(*arguments, *flags).json
        return answer["sizing"] if "sizing" in answer else answer["fits"][0]["sizing"]

    keys, both = sizing(), sizing("--kv-type", "f32")
    mixed = sizing("--kv-type-v", "f32")
    assert mixed["kv_type"] == "f16/f32"
    assert mixed["kv_bytes"] == (keys["kv_bytes"] + both["kv_bytes"]) / 2
    monkeypatch.setenv("HEARTH_KV_TYPE_V", "f32")
    assert sizing() == mixed


def test_sums_of_dimensions_alone(hearth) -> None:
    llama = ("--layers", "32", "--kv-heads", "32", "--head-dim", "128", "--ctx", "4096")
    result = hearth("fit", *llama, "--params", "7B", "--memory", "24GiB")
    assert result.code == 0
    assert "2.0 GiB" in result.out and "2.1 GB" in result.out and "25.8 GB" in result.out
    arguments = (*llama, "--params", "7B", "--sessions", "2", "--json", "--memory")
    binary, decimal = (hearth("fit", *arguments, size).json for size in ("24G", "24GB"))
    assert binary["sizing"]["kv_bytes"] == 4 << 30 and binary["cost"] is None
    assert binary["sizing"]["sessions_before_scratch"] == 5
    assert decimal["sizing"]["sessions_before_scratch"] == 4
    assert hearth("fit", *llama, "--params", "70B", "--memory", "24GB").code == 4
    many = hearth("fit", *llama, "--params", "7B", "--memory", "24GB", "--sessions", "20")
    assert many.code == 4 and "20 sessions do not fit" in many.out
    weightless = hearth("fit", *llama, "--json").json["sizing"]
    assert weightless["weight_bytes"] is weightless["total_bytes"] is None


def test_the_cost_of_a_token(hearth) -> None:
    arguments = ("fit", "--params", "7B", "--ctx", "1024", "--price-per-hour", "2")
    cost = hearth(*arguments, "--bandwidth", "900GB/s", "--json").json["cost"]
    assert cost["per_million"] == pytest.approx(2 / 3600 / cost["tok_per_s"] * 1e6)
    assert 50 < cost["tok_per_s"] < 65
    assert "as given" in hearth(*arguments, "--bandwidth", "900GB/s").out
    assert "measured here" in hearth(*arguments).out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "MODEL"),
        (("--layers", "2"), "heads"),
        (("--params", "many"), "parameters"),
        (("--params", "7MB"), "'7MB' is no number of parameters"),
        (("--params", "7B", "--precision", "half"), "half"),
        (("--params", "7B", "--memory", "much"), "GiB"),
        (("tiny", "--layers", "2", "--params", "7B"), "--layers, --params"),
    ],
)
def test_dimensions_that_do_not_suffice_are_wrong_usage(hearth, arguments, named) -> None:
    result = hearth("fit", *arguments)
    assert result.code == 2 and named in result.err


def test_the_same_sums_of_a_file(hearth) -> None:
    (found,) = hearth("fit", "tiny", "--sessions", "3", "--json").json["fits"]
    sizing = found["sizing"]
    assert sizing["weight_bytes"] == found["parts_bytes"]["weights"]
    assert sizing["kv_bytes"] == 3 * sizing["kv_bytes_per_session"]
    wide, narrow = (
        hearth("fit", "tiny", "--precision", name, "--json").json["fits"][0]["sizing"]
        for name in ("fp32", "int4")
    )
    assert wide["weight_bytes"] == 4 * wide["parameters"] == 8 * narrow["weight_bytes"]
    assert "MQA" in hearth("fit", "tiny").out
    assert hearth("fit", "tiny", "--memory", "80MB").code == 4


@pytest.mark.parametrize(
    ("flags", "memory", "code"),
    [
        (("--sessions", "2"), "1GB", 0),
        (("--sessions", "99999"), "1GB", 4),
        (("--precision", "int4", "--sessions", "2"), "80MB", 0),
    ],
)
def test_the_exit_code_is_about_what_was_asked(hearth, flags, memory, code) -> None:
    assert hearth("fit", "tiny", "--memory", memory, *flags).code == code


def test_what_does_not_fit_is_exit_code_4(hearth, monkeypatch) -> None:
    monkeypatch.setattr(fits, "available_bytes", lambda: 100 << 20)
    result = hearth("fit", "tiny")
    assert result.code == 4
    assert "does not fit" in result.out


def test_the_catalogue_without_a_network(hearth) -> None:
    answer = hearth("--offline", "fit", "qwen3-4b", "--json").json["fits"]
    names = [found["name"] for found in answer]
    assert "qwen3-4b:Q4_K_M" in names
    assert all(found["uncertain_bytes"] > 0 and found["fits_on_disk"] for found in answer)
    one = hearth("--offline", "fit", "qwen3-4b:Q4_K_M")
    assert one.code == 0 and "give or take" in one.out and "Disk:" in one.out
    none = hearth("--offline", "fit", "qwen3-4b:Q9")
    assert none.code == 3 and "no Q9" in none.err and "Q4_K_M" in none.err


def test_every_quant_of_a_repository(hearth, monkeypatch) -> None:
    monkeypatch.setattr(commands, "_offer_to_pull", lambda *_: pytest.fail("it was offered"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub_with(monkeypatch, Q4_K_M=5 * GB, Q8_0=9 * GB, F16=16 * GB)
    result = hearth("fit", REPO)
    assert result.code == 0
    lines = [line for line in result.out.splitlines() if REPO in line]
    assert len(lines) == 3
    states = {line.split()[0].partition(":")[2]: line.split()[-1] for line in lines}
    assert states["Q4_K_M"] in ("fits", "tight") and states["F16"] == "cannot"
    assert "estimated" in result.err


@pytest.mark.parametrize(
    "flags", [("--sessions", "2"), ("--precision", "int4"), ("--price-per-hour", "1")], ids=" ".join
)
def test_a_table_of_quants_refuses_what_it_does_not_show(hearth, monkeypatch, flags) -> None:
    hub_with(monkeypatch, Q4_K_M=5 * GB, F16=16 * GB)
    refused = hearth("fit", REPO, *flags)
    assert refused.code == 2 and flags[0] in refused.err and f"{REPO}:Q4_K_M" in refused.err
    assert hearth("fit", f"{REPO}:Q4_K_M", *flags).code == 0
    assert len(hearth("fit", REPO, *flags, "--json").json["fits"]) == 2


def test_one_quant_of_a_repository(hearth, monkeypatch) -> None:
    hub_with(monkeypatch, Q4_K_M=5 * GB, F16=16 * GB)
    assert hearth("fit", f"{REPO}:q4_k_m").code == 0
    assert hearth("fit", f"{REPO}:f16").code == 4
    assert hearth("fit", f"{REPO}:Q2_K").code == 3


def test_what_nobody_has(hearth) -> None:
    assert hearth("fit", "nothing-of-that-name").code == 3
    assert hearth("fit", "./nothing/at-all.gguf").code == 3
    assert hearth("--offline", "fit", REPO).code == 5
