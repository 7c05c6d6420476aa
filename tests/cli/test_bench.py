"""`hearth bench`: its table, its JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_openai import serving
from tiny_folders import tiny_folder

Hearth = Callable[..., Any]

SMALL = (
    *("--repeats", "2", "--prompt-tokens", "8", "--gen", "4", "--depth", "16", "--threads", "1"),
    *("--sessions", "1,2", "--session-prompt", "16", "--session-gen", "2"),
)


def test_the_table_has_a_row_a_test_with_both_sides(hearth: Hearth) -> None:
    found = hearth("bench", *SMALL)
    assert found.code == 0, found.err
    head, *rows = [line for line in found.out.splitlines() if "  " in line]
    assert head.split() == "test engine tok/s raw tok/s engine / raw of bandwidth".split()
    names = ["pp8", "tg4", "tg4 @ d16", "tg2 × 1", "tg2 × 2", "tg2 × 2 shared"]
    assert [row.split("  ")[0].strip() for row in rows] == names
    assert all(row.count("±") == 2 for row in rows)
    assert found.out.startswith("tiny · F32 · ")
    assert "threads 1 (prefill " in found.out and "flash attention auto" in found.out


def test_json_has_every_sample(hearth: Hearth) -> None:
    found = hearth("bench", "tiny", *SMALL, "--tests", "pp,depth", "--json")
    document = found.json
    assert document["setup"]["info"]["name"] == "tiny"
    assert document["machine"]["usable_cores"] >= 1 and document["date"]
    assert [test["test"] for test in document["tests"]] == ["pp8", "tg4 @ d16"]
    for test in document["tests"]:
        raw = test["beside"]["raw"]
        assert len(test["engine"]) == len(raw) == 2
        ratios = [ours / theirs for ours, theirs in zip(test["engine"], raw, strict=True)]
        assert test["ratio"]["raw"]["median"] == pytest.approx(sum(ratios) / 2)
        assert test["beside_tok_per_s"]["raw"]["low"] == min(raw)


def test_what_is_switched_off_has_a_row_and_the_rest_a_reason(hearth: Hearth) -> None:
    typed = ("--ablate", "--repeats", "1", "--sessions", "2", "--session-prompt", "16")
    found = hearth("bench", *typed, "--session-gen", "3")
    assert found.code == 0, found.err
    head, *rows = found.out.splitlines()[-4:]
    assert head.split("  ")[0] == "OFF" and "TTFT × 2 SHARED" in head and "TOK/S × 2" in head
    for row, off in zip(rows, ("nothing", "KV cache", "prefix reuse"), strict=True):
        assert row.startswith(off) and "llama.cpp, F32" in row
    for off in ("fused calls", "quantization"):
        assert f"skipped: {off}: llama.cpp computes" in found.err
    document = hearth("bench", *typed, "--session-gen", "3", "--json").json
    assert [one["off"] for one in document["ablations"]] == ["nothing", "KV cache", "prefix reuse"]
    assert len(document["skipped"]) == 2
    refused = hearth("bench", *typed, "--tune")
    assert (
        refused.code == 2 and "--ablate makes its own tests, so it takes no --tune" in refused.err
    )


def test_drafts_have_a_row_with_the_speed_up_next_to_the_formula(hearth: Hearth) -> None:
    typed = ("--speculate", "ngram", "--sessions", "1", "--gen", "8", "--threads", "1")
    found = hearth("bench", *typed, "--repeats", "1")
    assert found.code == 0, found.err
    head, *rows = found.out.splitlines()[-3:]
    assert head.startswith("SESSIONS  DRAFTS") and "COST K+1" in head and "PREDICTED" in head
    assert [row.split()[1] for row in rows] == ["ngram", "auto"]
    document = hearth("bench", *typed, "--repeats", "1", "--json").json
    assert [one["mode"] for one in document["speculation"]] == ["ngram", "auto"]
    for wrong, reason in (
        (("--speculate", "off"), "--speculate drafts nothing"),
        (("--draft-tokens", "3"), "--draft-tokens drafts nothing"),
        (("--speculate", "ngram", "--tune"), "take no --tune"),
    ):
        refused = hearth("bench", *wrong)
        assert refused.code == 2 and reason in refused.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random safetensors with a vocabulary."""
    pytest.importorskip("transformers")
    return tiny_folder("qwen3", tmp_path_factory.mktemp("folder") / "Tiny-Qwen3")


def test_the_native_backend_alone_has_no_empty_columns(hearth: Hearth, folder: Path) -> None:
    typed = (*SMALL, "--backend", "native", "--repeats", "1")
    found = hearth("bench", str(folder), *typed, "--tests", "pp")
    assert found.code == 0, found.err
    assert found.out.splitlines()[-2].split() == ["test", "engine", "tok/s"]
    found = hearth("bench", str(folder), *typed, "--tests", "pp,tg")
    head, prefill, decode = found.out.splitlines()[-3:]
    assert head.split() == "test engine tok/s of bandwidth".split()
    assert not prefill.endswith("%") and decode.endswith("%")


def test_transformers_stands_beside_the_native_backend(hearth: Hearth, folder: Path) -> None:
    typed = (*SMALL, "--reference", "transformers", "--repeats", "1", "--tests", "sessions")
    found = hearth("bench", str(folder), *typed, "--sessions", "2")
    assert found.code == 0, found.err
    head, row = found.out.splitlines()[-2:]
    titles = "test engine tok/s generate tok/s / generate batching tok/s / batching of bandwidth"
    assert head.split() == titles.split()
    assert row.startswith("tg2 × 2") and row.count("±") == 3 and row.endswith("%")
    found = hearth("bench", str(folder), *typed, "--sessions", "1", "--json")
    assert found.json["setup"]["beside"] == ["generate", "batching"]
    (test,) = found.json["tests"]
    assert set(test["beside"]) == set(test["ratio"]) == {"generate", "batching"}
    assert test["ratio"]["generate"]["median"] == test["engine"][0] / test["beside"]["generate"][0]


def test_a_reference_that_cannot_be_is_refused_by_name(hearth: Hearth) -> None:
    found = hearth("bench", *SMALL, "--reference", "transformers")
    assert found.code == 2 and "--reference is for the native backend" in found.err


def test_the_native_backend_is_tuned_with_what_it_has(hearth: Hearth, folder: Path) -> None:
    typed = (*_without_threads(), "--backend", "native", "--sessions", "1")
    found = hearth("bench", str(folder), "--tune", *typed)
    assert found.code == 0, found.err
    assert "skipped" not in found.err, "both types of keys and values are measured"
    assert "one answer soon: --threads " in found.out and "--kv-type " in found.out
    again = hearth("bench", str(folder), *typed, "--tests", "tg")
    assert "tuned before, for many answers in all: --threads" in again.err


def test_what_does_not_fit_is_named(hearth: Hearth) -> None:
    found = hearth("bench", *SMALL, "--tests", "tg,depth", "--depth", "600")
    assert found.code == 0
    assert "tg4 @ d600: needs 676 tokens a session, the model's context is 512" in found.err
    found = hearth("bench", *SMALL, "--tests", "depth", "--ctx", "64")
    assert "--ctx is 64" in found.err and "Nothing could be measured." in found.err


def test_tuning_prints_flags_and_remembers_them(hearth: Hearth, home: Path) -> None:
    found = hearth("bench", "--tune", *_without_threads())
    assert found.code == 0, found.err
    assert "one answer soon: --threads " in found.out
    assert "many answers in all: --threads " in found.out
    (entry,) = json.loads((home / "state" / "tuned.json").read_text())
    assert entry["found"]["latency"]["sessions"] == 1
    again = hearth("bench", *SMALL, "--tests", "tg")
    assert "tuned before, for many answers in all: --threads" in again.err


def _without_threads() -> list[str]:
    at = SMALL.index("--threads")
    return [*SMALL[:at], *SMALL[at + 2 :], "--repeats", "1"]


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        (("--tests", "pp,nothing"), "'nothing' is not one of pp, tg"),
        (("--sessions", "1,x"), "is not a list such as"),
        (("--sessions", "0"), "0 is less than 1"),
        (("--repeats", "0"), "0 is not in the range"),
        (("--requests", "4"), "--requests goes with --url"),
        (("--tune", "--tests", "pp"), "takes no --tests"),
        (("--tune", "--reference", "transformers"), "takes no --reference"),
        (("--reference", "vllm"), "'vllm' is not 'transformers'"),
        (("--url", "http://127.0.0.1:1", "--reference", "transformers"), "takes no --reference"),
        (("--tune", "--threads", "2"), "--threads is what --tune searches"),
        (("--max-sessions", "2"), "--max-sessions follows from the tests"),
        (("--url", "http://127.0.0.1:1", "--tune"), "takes no --tune"),
        (("--url", "http://127.0.0.1:1", "--threads", "1"), "--threads is a matter of the server"),
    ],
)
def test_what_makes_no_sense_is_refused(
    hearth: Hearth, typed: tuple[str, ...], reason: str
) -> None:
    found = hearth("bench", *typed)
    assert found.code == 2
    assert reason in found.err


def test_an_unknown_model_and_a_context_that_cannot_be_are_told_apart(hearth: Hearth) -> None:
    assert hearth("bench", "no-such-model").code == 3
    found = hearth("bench", *SMALL, "--kv-type", "q8_0", "--tests", "tg")
    assert found.code == 1 and "q8_0" in found.err


def test_a_server_is_measured_at_each_concurrency(hearth: Hearth) -> None:
    with serving(usage=5) as fake:
        found = hearth("bench", "--url", fake.url, "--concurrency", "1,2", "--gen", "5")
    assert found.code == 0, found.err
    assert found.out.startswith(f"fake-model at {fake.url}/chat/completions\n")
    rows = [line.split() for line in found.out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["1", "2", "0"], ["2", "4", "0"]]
    assert "prompts of 40 tokens" in found.err and "96 prompt tokens were cached" in found.err


def test_a_server_s_errors_are_shown_and_fail_the_command(
    hearth: Hearth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    typed = ("--concurrency", "1", "--requests", "3", "--api-key-env", "MY_KEY")
    with serving(fault="cut") as fake:
        found = hearth("bench", "some-model", "--url", fake.url, *typed)
        as_json = hearth("bench", "some-model", "--url", fake.url, *typed, "--json")
    assert found.code == as_json.code == 1
    assert "3 of 3 requests: some-model ended its stream before" in found.err
    assert as_json.json["results"][0]["failed"] == 3
    _, headers, body = fake.requests[0]
    assert headers["authorization"] == "Bearer secret" and body["model"] == "some-model"


def test_offline_reaches_this_machine_and_no_other(hearth: Hearth) -> None:
    found = hearth("bench", "m", "--url", "http://192.0.2.1:9/v1", "--offline")
    assert found.code == 5 and "offline" in found.err
    with serving() as fake:
        inside = hearth("bench", "--url", fake.url, "--concurrency", "1", "--offline")
    assert inside.code == 0, inside.err
