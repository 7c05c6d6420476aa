"""`hearth rm`: asks, says what is freed, unloads first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def tiny(home: Path) -> Path:
    return home / "data" / "models" / "tiny.gguf"


def test_without_yes_nothing_is_deleted_where_nobody_answers(hearth, tiny) -> None:
    for extra in ([], ["--json"]):
        result = hearth("rm", "tiny", *extra)
        assert result.code == 2
        assert "--yes" in result.err + result.out
        assert str(tiny) in result.err
        assert tiny.exists()


def test_with_yes_it_goes_and_says_what_was_freed(hearth, tiny) -> None:
    size = tiny.stat().st_size
    result = hearth("rm", "tiny", "--yes", no_host=True)
    assert (result.code, result.out) == (0, f"deleted tiny, {size / 1000:.1f} kB freed\n")
    assert not tiny.exists()


def test_json(hearth, tiny) -> None:
    size = tiny.stat().st_size
    answer = hearth("rm", "tiny", "TINY", "-y", "--json", no_host=True).json
    assert answer["freed_bytes"] == size
    [removed] = answer["removed"]
    assert removed == {"name": "tiny", "paths": [str(tiny)], "freed_bytes": size, "keeps": []}


def test_a_wrong_name_deletes_nothing(hearth, tiny) -> None:
    result = hearth("rm", "tiny", "tinny", "--yes")
    assert result.code == 3 and tiny.exists()
    result = hearth("rm", "tiny", "guide", "--yes")
    assert result.code == 1 and "comes with Hearth" in result.err and tiny.exists()


def test_a_damaged_file_can_be_deleted(hearth, tiny) -> None:
    bad = tiny.with_name("bad.gguf")
    bad.write_bytes(b"nothing of a model")
    assert hearth("rm", "bad", "--yes", no_host=True).code == 0
    assert not bad.exists() and tiny.exists()


def test_a_loaded_model_is_unloaded_first(hearth, tiny) -> None:
    worker = {"name": "tiny", "path": str(tiny), "running": 2}
    result = hearth("rm", "tiny", "--yes", workers=[worker])
    assert result.code == 0
    assert result.host.unloaded == [str(tiny)]
    assert "unloaded tiny, which ended 2 running" in result.err
    assert not tiny.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_a_person_is_asked(terminal, tiny) -> None:
    for answer, code in (("n", 1), ("", 1), ("what", None)):
        running = terminal("rm", "tiny", no_host=True)
        running.expect("[y/N]")
        running.send(answer)
        if code is None:
            running.expect("[y/N]")
            running.send("y")
            running.expect("deleted tiny")
            assert running.finish() == 0
        else:
            assert running.finish() == code and tiny.exists()
    assert not tiny.exists()
