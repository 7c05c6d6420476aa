"""The line above the prompt: its contents where space is limited."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from async_tests import in_loop
from hearth.app.tui.widgets.status_line import StatusLine, settings_in_words
from screens import text_of

MODEL = "SmolLM2-135M-Instruct.Q4_1"
SETTINGS = {"constraint": {"kind": "json"}, "set": {"temperature": 0.25}}


class Page(App[None]):
    """A page with a status line."""

    def compose(self) -> ComposeResult:
        yield StatusLine()


def test_a_grammar_is_not_written_out() -> None:
    settings = {"constraint": {"kind": "grammar", "source": 'root ::= "a"'}}
    assert settings_in_words("", settings) == ["grammar"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (132, f"{MODEL} · system: You are a helpful assis… · JSON · temperature 0.25"),
        (92, "SmolLM2-135M-Instr… · system: You a… · JSON · temperature 0.25"),
        (70, "SmolLM2-135M-… · system: You a… · JSON …"),
        (30, ""),
    ],
)
@in_loop
async def test_the_longest_parts_are_cut_first(columns: int, expected: str) -> None:
    app = Page()
    async with app.run_test(size=(columns, 3)) as pilot:
        words = settings_in_words("You are a helpful assistant who answers briefly.", SETTINGS)
        app.query_one(StatusLine).show(MODEL, "", words, used=34, context=2048)
        await pilot.pause()
        left, _, right = text_of(app).partition("━")
        assert left.strip() == expected
        assert "34 of 2,048 (2%)" in right
