"""Presets are kept whole, read strictly, and found by name."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from hearth.app.presets import (
    Preset,
    PresetExists,
    PresetNotFound,
    Presets,
    PresetsUnusable,
    check_chat_settings,
)
from hearth.backends.errors import InvalidParameter

SETTINGS: dict[str, Any] = {
    "set": {"temperature": 0.2, "stop": ["END"], "logit_bias": {"42": -100}, "seed": "auto"},
    "thinking": False,
    "constraint": {"kind": "choice", "source": '["yes", "no"]'},
    "preset": "",
}
BRIEF = Preset("Brief", "Be brief.", "guide", SETTINGS)


@pytest.fixture
def presets(tmp_path: Path) -> Presets:
    return Presets(tmp_path / "config" / "presets.json")


def test_a_preset_is_kept_for_its_owner_alone(presets: Presets, tmp_path: Path) -> None:
    assert presets.all() == []
    presets.save(BRIEF)
    presets.save(Preset("  Another "))
    assert Presets(tmp_path / "config" / "presets.json").all() == [Preset("Another"), BRIEF]
    assert presets.get("brief") == BRIEF
    (file,) = (tmp_path / "config").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_saving_replaces_what_has_the_name(presets: Presets) -> None:
    presets.save(BRIEF)
    presets.save(Preset("BRIEF", "Be very brief."))
    assert presets.all() == [Preset("BRIEF", "Be very brief.")]


def test_renaming_and_deleting(presets: Presets) -> None:
    presets.save(BRIEF)
    presets.save(Preset("Poet"))
    with pytest.raises(PresetExists):
        presets.rename("Brief", "poet")
    assert presets.rename("brief", "BRIEF").name == "BRIEF"
    assert presets.rename("brief", "Short").system == "Be brief."
    presets.delete("Poet")
    assert [preset.name for preset in presets.all()] == ["Short"]


def test_what_is_not_there_names_the_nearest(presets: Presets) -> None:
    presets.save(BRIEF)
    for call in (presets.get, presets.delete, lambda name: presets.rename(name, "x")):
        with pytest.raises(PresetNotFound) as caught:
            call("Breif")
        assert "Brief" in caught.value.message


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 81, "a\x1b[31m"])
def test_a_name_is_one_line(presets: Presets, name: str) -> None:
    with pytest.raises(PresetsUnusable):
        presets.save(Preset(name))
    assert presets.all() == []


ENTRY = {"name": "a", "system": "", "model": "", "settings": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"version": 2, "presets": []}',
        '{"version": 1}',
        '{"version": 1, "presets": {}}',
        json.dumps({"version": 1, "presets": [1]}),
        json.dumps({"version": 1, "presets": [{**ENTRY, "more": 1}]}),
        json.dumps({"version": 1, "presets": [{**ENTRY, "model": None}]}),
        json.dumps({"version": 1, "presets": [{**ENTRY, "name": ""}]}),
        json.dumps({"version": 1, "presets": [ENTRY, {**ENTRY, "name": "A"}]}),
        json.dumps({"version": 1, "presets": [{**ENTRY, "settings": {"sett": {}}}]}),
        json.dumps({"version": 1, "presets": [{**ENTRY, "settings": {"set": {"top_k": -1}}}]}),
        "[" * 100_000,
    ],
)
def test_a_file_that_is_wrong_is_told_and_left(tmp_path: Path, text: str) -> None:
    file = tmp_path / "presets.json"
    file.write_text(text, encoding="latin-1")
    for call in (lambda: Presets(file).all(), lambda: Presets(file).save(BRIEF)):
        with pytest.raises(PresetsUnusable) as caught:
            call()
        assert str(file) in str(caught.value) and caught.value.hint
    assert file.read_text(encoding="latin-1") == text


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(PresetsUnusable):
        Presets(tmp_path / "config" / "presets.json").save(BRIEF)


@pytest.mark.parametrize("settings", [{}, SETTINGS, {"thinking": None}, {"constraint": None}])
def test_settings_of_chats_that_are_right(settings: dict[str, Any]) -> None:
    assert check_chat_settings(settings) is settings


@pytest.mark.parametrize(
    "settings",
    [
        [],
        {"other": 1},
        {"thinking": 1},
        {"preset": None},
        {"set": []},
        {"set": {"temprature": 1}},
        {"set": {"temperature": "hot"}},
        {"set": {"context": 512}},
        {"constraint": "json"},
        {"constraint": {"kind": "yaml"}},
        {"constraint": {"kind": "json", "source": 1}},
        {"constraint": {"kind": "json", "source": "", "x": 1}},
        {"constraint": {"kind": "json_schema", "source": "{"}},
        {"constraint": {"kind": "choice", "source": "[]"}},
    ],
)
def test_settings_of_chats_that_are_wrong(settings: object) -> None:
    with pytest.raises(InvalidParameter):
        check_chat_settings(settings)
