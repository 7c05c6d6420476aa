"""`hearth pull`, from a stand-in for the Hub: what is offered, taken, told and resumed."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.app import format as words
from hub_server import Fault, HubServer, Repo, only_hub
from terminals import PATIENCE_S

REPO = "Qwen/Qwen3-4B-GGUF"
NAME = "Qwen3-4B"
QUANTS = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_XS", "Q4_0", "Q4_K_S"),
    *("Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16"),
)
TOO_LARGE = 10**15
on_terminals = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")


@pytest.fixture
def hub(
    home: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """A Hub with a repository of twelve quants, of which the last is larger than any machine."""
    tiny = tiny_model.read_bytes()
    files = {f"{NAME}-{quant}.gguf": tiny for quant in QUANTS}
    with only_hub(monkeypatch, tmp_path) as server:
        server.repos[REPO] = Repo(
            {"README.md": b"# A model", "pytorch_model.bin": b"\x80\x02", **files},
            parameters=108_608,
            sizes={f"{NAME}-F16.gguf": TOO_LARGE},
        )
        yield server


def test_one_quant_of_twelve_without_a_person(hearth, hub, tmp_path) -> None:
    result = hearth("pull", f"{REPO}:q4_k_m", "--yes", "--json")
    assert result.code == 0
    answer = result.json
    assert (answer["name"], answer["repo"], answer["error"]) == ("Qwen3-4B-Q4_K_M", REPO, None)
    assert answer["commit"] == hub.repos[REPO].commit
    assert Path(answer["path"]).is_relative_to(tmp_path / "hf-home" / "hub")
    assert answer["choice"]["recommended"] and answer["choice"]["group"] == "balanced"
    assert [choice["name"] for choice in answer["choices"] if choice["recommended"]] == ["Q4_K_M"]
    assert {choice["name"] for choice in answer["choices"]} == set(QUANTS)
    for choice in answer["choices"]:
        assert choice["size_bytes"] > 0 and choice["fit"]
    listed = {model["name"]: model for model in hearth("list", "--json").json["models"]}
    assert listed["Qwen3-4B-Q4_K_M"]["repo"] == REPO
    assert listed["Qwen3-4B-Q4_K_M"]["origin"] == "huggingface"
    assert hearth("run", f"{REPO}:Q4_K_M", "hi").out == "echo: hi\n"
    assert hearth("run", "qwen3-4b", "hi").out == "echo: hi\n"
    assert not any(path.endswith((".bin", ".md")) for path in asked(hub))


def asked(hub: HubServer) -> list[str]:
    return [request.path for request in hub.requests if request.host == "blobs"]


def test_yes_alone_takes_the_recommended(hearth, hub) -> None:
    result = hearth("pull", "QWEN3-4B", "--yes")
    assert result.code == 0
    assert "Q4_K_M" in result.err and "hearth run Qwen3-4B-Q4_K_M" in result.err
    assert result.out == ""
    before = len(asked(hub))
    assert hearth("pull", "qwen3-4b", "--yes").code == 0
    assert len(asked(hub)) == before


def test_nobody_to_ask_and_nothing_named_is_a_usage_error(hearth, hub) -> None:
    result = hearth("pull", REPO, "--json")
    message = result.json["error"]["message"]
    assert result.code == 2
    assert f"{REPO}:Q4_K_M" in message and "--yes" in message
    assert all(quant in message for quant in QUANTS)
    assert asked(hub) == []


def test_a_quant_that_is_not_there_gets_the_nearest(hearth, hub) -> None:
    result = hearth("pull", f"{REPO}:Q4_K_L", "--yes")
    assert result.code == 3 and "Q4_K_S" in result.err


def test_what_does_not_fit_is_only_taken_on_demand(hearth, hub) -> None:
    result = hearth("pull", f"{REPO}:F16", "--json")
    assert result.code == 4
    assert "--yes" in result.json["error"]["hint"]
    assert asked(hub) == []


def test_progress_as_lines_of_json(hearth, hub) -> None:
    result = hearth("pull", f"{REPO}:Q2_K", "--progress", "json", "--json")
    *updates, answer = [json.loads(line) for line in result.out.splitlines()]
    assert answer["name"] == "Qwen3-4B-Q2_K"
    last = updates[-1]["progress"]
    assert last["done_bytes"] == last["total_bytes"] == answer["choice"]["size_bytes"]


def test_a_name_that_nobody_has(hearth, hub) -> None:
    result = hearth("pull", "qwen3-4")
    assert result.code == 3 and f"hearth pull {REPO}" in result.err
    result = hearth("pull", "nobody-knows-this", "--json")
    assert result.code == 3 and "hearth pull org/name" in result.json["error"]["hint"]
    assert hearth("pull", "org/none:Q4_K_M").code == 3


def test_offline_no_connection_is_opened(hearth, hub) -> None:
    for arguments in (["pull", REPO, "--offline"], ["--offline", "pull", "qwen3-4b", "--yes"]):
        result = hearth(*arguments)
        assert result.code == 5
    assert hub.requests == []


def test_a_revision(hearth, hub) -> None:
    commit = hub.repos[REPO].commit
    answer = hearth("pull", f"{REPO}:Q6_K", "--revision", commit, "--json").json
    assert (answer["revision"], answer["commit"]) == (commit, commit)
    assert hearth("pull", f"{REPO}:Q6_K", "--revision", "none").code == 3


def test_a_model_that_cannot_be_run_is_told(hearth, hub) -> None:
    hub.repos["org/bad"] = Repo({"bad-Q8_0.gguf": b"GGUF and nothing else"})
    result = hearth("pull", "org/bad", "--yes")
    assert result.code == 0 and "bad-Q8_0 cannot be run" in result.err


def test_pickles_are_refused(hearth, hub) -> None:
    hub.repos["org/old"] = Repo({"pytorch_model.bin": b"\x80\x02"})
    result = hearth("pull", "org/old", "--yes")
    assert result.code == 1 and "can run any code" in result.err


def test_the_catalogue(hearth) -> None:
    result = hearth("pull")
    assert result.code == 0
    assert "qwen3-4b " in result.out and "about 2.5 GB" in result.out
    models = hearth("pull", "--json").json["models"]
    entry = next(model for model in models if model["name"] == "qwen3-4b")
    assert entry["repo"] == REPO
    assert entry["shape"] == {"layers": 36, "kv_heads": 8, "head_size": 128}


def test_the_only_file_of_a_repository_need_not_be_named(hearth, hub, tiny_model) -> None:
    hub.repos["org/one"] = Repo({"one-Q4_K_M.gguf": tiny_model.read_bytes()})
    assert hearth("pull", "org/one").code == 0


def test_a_missing_model_names_the_command_that_pulls_it(hearth, hub) -> None:
    result = hearth("run", f"{REPO}:Q4_K_M", "hi")
    assert result.code == 3 and f"`hearth pull {REPO}:Q4_K_M`" in result.err
    assert hub.requests == []


@on_terminals
def test_a_person_sees_the_groups_and_chooses(terminal, hub) -> None:
    running = terminal("pull", REPO)
    for text in ("108.6 k parameters", "Small", "Balanced", "Q4_K_M", "Recommended", "Large"):
        running.expect(text)
    running.expect("Which? [Q4_K_M]")
    running.send("Q9")
    running.expect("has no Q9")
    running.expect("Which?")
    running.send("1")
    running.expect("Qwen3-4B-Q2_K is here")
    assert running.finish() == 0


@on_terminals
def test_a_person_is_warned_of_what_does_not_fit(terminal, hub) -> None:
    running = terminal("pull", f"{REPO}:F16")
    running.expect("does not fit this machine. Download it anyway? [y/N]")
    running.send("")
    running.expect("Nothing was downloaded.")
    assert running.finish() == 1
    assert asked(hub) == []


@on_terminals
def test_ctrl_c_keeps_what_came_and_the_same_command_goes_on(terminal, hearth, hub) -> None:
    size = len(hub.repos[REPO].files[f"{NAME}-Q4_K_M.gguf"])
    hub.faults.append(Fault("stall", f"{NAME}-Q4_K_M.gguf", at=size // 2))
    stalled = threading.Event()
    hub.on_sent = lambda sent_bytes: sent_bytes < size // 2 or stalled.set()
    running = terminal("pull", f"{REPO}:Q4_K_M")
    running.expect("0 B of")
    assert stalled.wait(PATIENCE_S)
    running.press("C")
    running.expect("are here and stay")
    running.expect(f"hearth pull {REPO}:Q4_K_M")
    assert running.finish() == 130
    [kept] = re.findall(rb"Stopped; (.*) of .* are here", running.seen)
    before = hub.sent_bytes
    assert hearth("pull", f"{REPO}:Q4_K_M").code == 0
    assert words.size(size - (hub.sent_bytes - before)) == kept.decode()


@on_terminals
def test_run_offers_to_pull_what_is_missing(terminal, hub) -> None:
    running = terminal("run", f"{REPO}:Q4_K_M", "hello")
    running.expect("Pull it (")
    running.expect("[Y/n]")
    running.send("")
    running.expect("is here")
    running.expect("hello")
    assert running.finish() == 0


@on_terminals
def test_who_declines_gets_the_error(terminal, hub) -> None:
    running = terminal("run", "qwen3-4b", "hello")
    running.expect("[Y/n]")
    running.send("n")
    running.expect('There is no model "qwen3-4b"')
    assert running.finish() == 3
    assert asked(hub) == []
