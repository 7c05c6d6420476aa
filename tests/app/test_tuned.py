"""What `hearth bench --tune` found is kept for that machine, file and library alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hearth.app.machine import Machine
from hearth.app.tuned import TunedFor, TunedStore
from hearth.backends.bench.job import Choice, Tuned

CHOICE = Choice(1, 2, 512, "f16", 4, 100.0, 20.0, 1.5, 30.0)
FOUND = Tuned(CHOICE, replace(CHOICE, sessions=8), 7, "llama.cpp 1")
MACHINE = Machine("Linux", "a processor", (), 2, 2, 1 << 34, 1 << 33)
KEY = TunedFor("a machine", "12-abc", "llama.cpp 1")


def test_a_finding_is_kept_and_replaced(tmp_path: Path) -> None:
    store = TunedStore(tmp_path / "new" / "tuned.json")
    assert store.get(KEY) is None
    store.put(KEY, FOUND)
    store.put(replace(KEY, file="other"), replace(FOUND, tried=1))
    assert store.get(KEY) == FOUND
    store.put(KEY, replace(FOUND, tried=9))
    assert TunedStore(tmp_path / "new" / "tuned.json").get(KEY) == replace(FOUND, tried=9)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tuned.json"]


@pytest.mark.parametrize("field", ["machine", "file", "library"])
def test_it_says_nothing_about_anything_else(tmp_path: Path, field: str) -> None:
    store = TunedStore(tmp_path / "tuned.json")
    store.put(KEY, FOUND)
    assert store.get(replace(KEY, **{field: "another"})) is None


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[1]", '[{"for": 1}]', "\x00", '[{"for": %s, "found": {}}]']
)
def test_a_file_that_cannot_be_read_counts_as_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuned.json"
    key = '{"machine": "a machine", "file": "12-abc", "library": "llama.cpp 1"}'
    file.write_text(text.replace("%s", key))
    store = TunedStore(file)
    assert store.get(KEY) is None
    store.put(KEY, FOUND)
    assert store.get(KEY) == FOUND


def test_a_key_tells_files_apart_by_what_is_in_them(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    one.write_bytes(b"a" * 3_000_000)
    two.write_bytes(b"a" * 2_999_999 + b"b")
    three.write_bytes(b"a" * 3_000_001)

    def key(model: Path) -> TunedFor:
        return TunedFor.of(MACHINE, model, "llama.cpp 1")

    assert len({key(one), key(two), key(three)}) == 3
    two.write_bytes(one.read_bytes())
    assert key(one) == key(two)
