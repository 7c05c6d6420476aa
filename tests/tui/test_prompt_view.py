"""The exact prompt: text, tokens, windows, and the notes about it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.widgets import Static

from async_tests import in_loop
from dialog_app import Asker, asking, settle
from hearth.app.tui.screens.prompt_view import WINDOW, Piece, Pieces, PromptView, is_part
from hearth.backends.contract.events import Prompt
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import NoChatTemplate
from screens import text_of
from scripted import Script, ScriptedModel

SPEC = ModelSpec("path", "guide", "llamacpp", ModelSettings())
REQUEST = Request(messages=(Message("user", "hi"),))
TEXTS = (b"<s>", b"<|user|>", b"Hi [b]", b"\xf0\x9f", b"\x99\x82", b"\n", b"\x1b[31m", b"<tag>")
"""The texts of tokens by id; the first two are special."""


class Tokens(ScriptedModel):
    """A model with a small vocabulary, which counts its requests."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(SPEC, Script())
        self.prompt = prompt
        self.asked = 0

    async def render(self, request: Request) -> Prompt:
        return self.prompt

    async def detokenize(self, ids: Sequence[int]) -> str:
        self.asked += 1
        return b"".join(TEXTS[token] for token in ids).decode("utf-8", errors="replace")

    async def tokenize(self, text: str, *, special: bool = False, **_: object) -> list[int]:
        token = TEXTS.index(text.encode())
        return [token] if special or token > 1 else [2, 2]


def tokens_of(app: Asker) -> str:
    return str(app.screen.query_one("#tokens", Static).content)


SMALL = Prompt("<s><|user|>Hi [b]🙂\n\x1b[31m<tag>", (0, 1, 2, 3, 4, 5, 6, 7), ("Note [this].",))


@pytest.mark.parametrize("width", [60, 120])
@in_loop
async def test_the_text_is_shown_with_its_special_tokens_and_notices(width: int) -> None:
    async with asking(PromptView(Tokens(SMALL), REQUEST, 4096), width) as (app, _):
        shown = text_of(app)
        assert "8 tokens of 4,096 (0 %)" in shown
        assert "Note [this]." in shown
        assert "<s><|user|>Hi [b]🙂" in shown and "␛[31m<tag>" in shown
        content = app.screen.query_one("#tokens", Static).content
        marked = {content.plain[span.start : span.end] for span in content.spans}  # type: ignore[union-attr]
        assert marked == {"<s>", "<|user|>"}


@in_loop
async def test_ids_are_a_column_that_can_be_toggled() -> None:
    async with asking(PromptView(Tokens(SMALL), REQUEST)) as (app, pilot):
        text = tokens_of(app)
        await pilot.press("i")
        await settle(app, pilot)
        rows = [line.split(maxsplit=2) for line in tokens_of(app).splitlines()]
        assert rows[0] == ["0", "0", "<s>"]
        assert rows[3][2].split() == ["4", "🙂"]
        assert rows[4] == ["5", "5", "\\n"]
        assert rows[5] == ["6", "6", "␛[31m"]
        await pilot.press("i")
        await settle(app, pilot)
        assert tokens_of(app) == text


@in_loop
async def test_a_long_prompt_is_shown_in_windows() -> None:
    count = 2 * WINDOW + 3
    model = Tokens(Prompt("Hi [b]" * count, (2,) * count))
    async with asking(PromptView(model, REQUEST, 100_000)) as (app, pilot):
        assert tokens_of(app) == "Hi [b]" * WINDOW
        assert model.asked == 1
        await pilot.press("p", "i", "n")
        await settle(app, pilot)
        assert tokens_of(app).splitlines()[0].split()[:2] == [str(WINDOW), "2"]
        await pilot.press("n", "n", "n")
        await settle(app, pilot)
        assert len(tokens_of(app).splitlines()) == 3
        assert "shown: 1,000 to 1,002" in text_of(app)
        await pilot.press("p", "i")
        await settle(app, pilot)
        assert tokens_of(app) == "Hi [b]" * WINDOW


@in_loop
async def test_too_long_a_prompt_is_told() -> None:
    async with asking(PromptView(Tokens(SMALL), REQUEST, 8)) as (app, _):
        assert "8 tokens of 8 (100 %): no room" in text_of(app)


@in_loop
async def test_it_is_copied_as_it_is() -> None:
    async with asking(PromptView(Tokens(SMALL), REQUEST)) as (app, pilot):
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard == SMALL.text
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is not app.question


@in_loop
async def test_why_there_is_no_prompt_is_told() -> None:
    class Mute(ScriptedModel):
        async def render(self, request: Request) -> Prompt:
            raise NoChatTemplate("It has no [template].", "Choose another model.")

    async with asking(PromptView(Mute(SPEC, Script()), REQUEST)) as (app, pilot):
        assert "It has no [template]. Choose another model." in text_of(app)
        await pilot.press("y", "i", "n", "q")
        await pilot.pause()
        assert app.screen is not app.question


@in_loop
async def test_tokens_that_have_other_texts_alone_do_not_change_the_text() -> None:
    model = ScriptedModel(SPEC, Script())  # Its tokens are numbers, whatever the text is.
    async with asking(PromptView(model, REQUEST)) as (app, _):
        assert tokens_of(app) == "<user>hi"


@in_loop
async def test_a_character_of_several_tokens_is_one_piece() -> None:
    model = Tokens(SMALL)
    found = await Pieces(model).of((2, 3, 4, 3, 5))
    assert [piece.ids for piece in found] == [(2,), (3, 4), (3,), (5,)]
    assert [piece.text for piece in found] == ["Hi [b]", "🙂", "�", "\n"]


def test_a_beginning_that_no_template_writes_is_no_other_text() -> None:
    pieces = [Piece((0,), "<s>", True), Piece((2,), "Hi")]
    assert is_part(pieces, "Hi there")
    assert not is_part([Piece((0,), "x"), Piece((2,), "Hi")], "Hi there")
