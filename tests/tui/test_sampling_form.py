"""The settings of a chat as a form: every key of the table, validated during input."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Select, TextArea

from async_tests import in_loop
from dialog_app import OPEN, Asker, settle
from hearth.app.presets import check_chat_settings
from hearth.app.settings import Setting, Settings, load_settings
from hearth.app.settings_keys import SAMPLING, Key, default_of
from hearth.app.tui.screens.sampling import SamplingScreen
from hearth.app.tui.widgets.sampling_form import SettingRow, read, written
from screens import text_of

EMPTY: dict[str, Any] = {"set": {}, "thinking": None, "constraint": None, "preset": ""}
SHOWN = [key for key in SAMPLING if key.name != "logprobs"]


class FormApp(Asker):
    """Shows the form."""

    def __init__(self, settings: dict[str, Any], inherited: Settings, model: str) -> None:
        self.form = SamplingScreen(settings, inherited, model)
        super().__init__(self.form)

    def row(self, name: str) -> SettingRow:
        return self.form.query_one(f"#row-{name}", SettingRow)

    def write(self, name: str, text: str) -> None:
        self.row(name).query_one(Input).value = text


@pytest.fixture
def inherited(tmp_path: Path) -> Settings:
    file = tmp_path / "settings.toml"
    file.write_text('[sampling]\ntemperature = 0.3\n[models."guide".sampling]\ntop_k = 7\n')
    return load_settings(file, {"HEARTH_TOP_P": "0.9"})


@asynccontextmanager
async def filling(
    settings: dict[str, Any],
    inherited: Settings,
    width: int = 80,
    model: str = "guide",
    height: int = 40,
) -> AsyncIterator[tuple[FormApp, Pilot[None]]]:
    app = FormApp(settings, inherited, model)
    async with app.run_test(size=(width, height)) as pilot:
        await settle(app, pilot)
        yield app, pilot


async def save(app: FormApp, pilot: Pilot[None]) -> Any:
    await pilot.press("ctrl+s")
    await settle(app, pilot)
    return app.answer


@in_loop
async def test_without_a_change_nothing_is_set(inherited: Settings) -> None:
    async with filling({}, inherited) as (app, pilot):
        assert [row.key for row in app.form.rows][3:] == [
            key for key in SHOWN if key.name not in ("max_tokens", "stop", "seed")
        ]
        assert await save(app, pilot) == EMPTY


@pytest.mark.parametrize("width", [60, 120])
@in_loop
async def test_each_row_says_value_origin_range_and_default(
    inherited: Settings, width: int
) -> None:
    async with filling({"set": {"min_p": 0.2}}, inherited, width, height=80) as (app, pilot):
        app.row("temperature").query_one(Input).focus()
        await settle(app, pilot)
        shown = " ".join(text_of(app).replace("│", " ").split())
        assert "temperature 0.3 settings.toml" in shown
        assert "a number from 0 to 10; default 0.7" in shown
        assert "top_k 7 settings.toml" in shown
        assert "top_p 0.9 HEARTH_TOP_P" in shown
        assert "* min_p 0.2 this chat" in shown


@in_loop
async def test_what_is_written_is_the_answer(inherited: Settings) -> None:
    async with filling({**EMPTY, "preset": "Brief"}, inherited) as (app, pilot):
        app.row("temperature").query_one(Input).focus()
        await pilot.press(*"1.5", "down", *"0", "enter")
        app.write("stop", '["END", "\\n\\n"]')
        app.write("logit_bias", "42=-100, 7=1.5")
        app.write("max_tokens", "2,048")
        app.write("seed", "auto")
        answer = await save(app, pilot)
        assert answer == {
            "set": {
                "max_tokens": 2048,
                "stop": ["END", "\n\n"],
                "seed": "auto",
                "temperature": 1.5,
                "top_k": 0,
                "logit_bias": {"42": -100.0, "7": 1.5},
            },
            "thinking": None,
            "constraint": None,
            "preset": "Brief",
        }
        json.dumps(answer)


@in_loop
async def test_a_wrong_value_is_told_at_once_and_not_saved(inherited: Settings) -> None:
    async with filling({}, inherited) as (app, pilot):
        app.row("top_p").query_one(Input).focus()
        await pilot.press(*"2")
        await settle(app, pilot)
        assert "expected a number above 0 to 1, not 2" in text_of(app)
        assert "1 invalid" in text_of(app)
        app.row("seed").query_one(Input).focus()
        assert await save(app, pilot) is OPEN
        assert app.form.focused is app.row("top_p").query_one(Input)
        await pilot.press("backspace", *"1")
        assert (await save(app, pilot))["set"] == {"top_p": 1.0}


@in_loop
async def test_one_is_reset_and_all_are(inherited: Settings) -> None:
    settings = {"set": {"temperature": 1.0, "top_k": 3}, "thinking": True}
    constraint = {"kind": "json", "source": ""}
    async with filling({**settings, "constraint": constraint}, inherited) as (app, pilot):
        app.row("top_k").query_one(Input).focus()
        await pilot.press("ctrl+r")
        await settle(app, pilot)
        assert app.form.answer["set"] == {"temperature": 1.0}
        await pilot.press("ctrl+l")
        assert await save(app, pilot) == EMPTY


@in_loop
async def test_thinking_is_its_own_on_or_off(inherited: Settings) -> None:
    async with filling({"thinking": False}, inherited) as (app, pilot):
        choice = app.form.query_one("#thinking Select", Select)
        assert choice.value == "off"
        choice.focus()
        await pilot.press("enter", "up", "enter")
        await settle(app, pilot)
        assert app.form.answer["thinking"] is True
        choice.focus()
        await pilot.press("ctrl+r")
        assert (await save(app, pilot))["thinking"] is None


@in_loop
async def test_answers_can_have_a_form(inherited: Settings) -> None:
    forms = [
        ("json", "", ""),
        ("json_schema", '{"type": "object"}', '{"type": "object"}'),
        ("regex", "[a-z]+", "[a-z]+"),
        ("grammar", 'root ::= "a"', 'root ::= "a"'),
        ("choice", '["a\\nb", "c"]', '["a\\nb", "c"]'),
        ("choice", "yes\nno [b]\n", '["yes", "no [b]"]'),
    ]
    async with filling({}, inherited) as (app, pilot):
        area = app.form.form.query_one(TextArea)
        for kind, text, source in forms:
            app.form.form.query_one(Select).value = kind
            await pilot.pause()
            assert area.display is bool(source)
            area.load_text(text)
            await pilot.pause()
            assert app.form.answer["constraint"] == {"kind": kind, "source": source}
            check_chat_settings(app.form.answer)
        answer = await save(app, pilot)
    async with filling(answer, inherited) as (app, pilot):
        assert app.form.form.query_one(TextArea).text == "yes\nno [b]"
        assert app.form.answer == answer


@in_loop
async def test_a_form_that_cannot_be_followed_is_told(inherited: Settings) -> None:
    async with filling({}, inherited) as (app, pilot):
        for kind, text in (
            ("json_schema", "{"),
            ("json_schema", "[]"),
            ("choice", ""),
            ("regex", ""),
        ):
            app.form.form.query_one(Select).value = kind
            await pilot.pause()
            app.form.form.query_one(TextArea).load_text(text)
            await settle(app, pilot)
            assert app.form.form.error and "1 invalid" in text_of(app)
            assert await save(app, pilot) is OPEN
            assert app.form.focused is app.form.form.query_one(TextArea)


@in_loop
async def test_the_source_of_each_kind_stays_while_one_looks_at_others(
    inherited: Settings,
) -> None:
    constraint = {"kind": "regex", "source": "[a-z]+"}
    async with filling({"constraint": constraint}, inherited) as (app, pilot):
        for kind in ("choice", "json", "regex"):
            app.form.form.query_one(Select).value = kind
            await settle(app, pilot)
        assert app.form.answer["constraint"] == constraint


@in_loop
async def test_changes_are_forgotten_only_after_a_yes(inherited: Settings) -> None:
    async with filling({}, inherited) as (app, pilot):
        app.write("top_k", "3")
        await settle(app, pilot)
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("n")
        await settle(app, pilot)
        assert app.answer is OPEN
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("y")
        await settle(app, pilot)
        assert app.answer is None


@in_loop
async def test_without_changes_escape_leaves_at_once(inherited: Settings) -> None:
    async with filling({"set": {"top_k": 3, "stop": ["x"]}}, inherited) as (app, pilot):
        await pilot.press("escape")
        await settle(app, pilot)
        assert app.answer is None


@in_loop
async def test_foreign_names_are_safe(inherited: Settings) -> None:
    async with filling({}, inherited, model="[red]a\x1b[31m") as (app, _):
        assert "with [red]a␛[31m" in text_of(app)


# ---- values as they are written


VALUES: dict[str, list[object]] = {
    "texts": [(), ("END",), ("a", "b\n"), ("[x",), ("\x1b",), ("",)],
    "biases": [{}, {42: -100.0, 7: 0.5}],
    "int": [0, 3],
    "float": [0.25, 1.0],
}


@pytest.mark.parametrize("key", SHOWN, ids=lambda key: key.name)
def test_every_value_is_read_as_it_is_written(key: Key) -> None:
    values = [default_of(key), *VALUES.get(key.kind, key.choices)]
    for value in (*values, *(("auto",) if key.auto else ())):
        try:
            known = key.check(value)
        except ValueError:
            continue
        text = written(key, known)
        assert text and read(key, text) == known
        assert key.check(json.loads(json.dumps(key.stored(known)))) == known


@pytest.mark.parametrize("text", ['["a"', "[1]", "[1, 2", f"[{'9' * 5000}]", "[" * 9999])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    (key,) = (key for key in SAMPLING if key.name == "stop")
    with pytest.raises(ValueError, match="expected"):
        read(key, text)


def test_an_inherited_value_that_is_not_set_is_said() -> None:
    key = Key("x", "int", "help")
    assert written(key, None) == ""
    assert SettingRow(key, Setting(None), is_set=False).text == ""
