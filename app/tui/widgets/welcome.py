"""The first screen: what an empty chat shows in place of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.slab import TextToPrompt

_ABOUT: Final = (
    "Hearth runs language models on your computer; your chats stay on it.\n"
    "It downloads models (F3), quantizes them (F4) and serves them (F6)."
)
_PROMPTS: Final = (
    "What is the capital of France?",
    "Explain in two sentences what a language model is.",
    "? How do I get a larger model?",
)
_GUIDE_PROMPTS: Final = (
    "What can Hearth do?",
    "How do I get a larger model?",
    "How do I use a model from other programs?",
)


class Prompts(OptionList, TextToPrompt):
    """Prompts to send; other typed text goes to the prompt box below."""


class Welcome(VerticalScroll, can_focus=False):
    """What Hearth is, which model answers, and prompts to begin with."""

    DEFAULT_CSS = """
    Welcome { height: 1fr; padding: 1 2; scrollbar-size-vertical: 1; }
    Welcome > Static { margin-bottom: 1; max-width: 100; }
    Welcome > .hint { color: $text-muted; margin-bottom: 0; &:ansi { text-style: dim; } }
    Welcome > OptionList {
        height: auto; max-width: 100; border: none; padding: 0; background: transparent;
    }
    Welcome > OptionList:focus { border: none; }
    """

    @dataclass
    class Chosen(Message):
        """The user wants to send the prompt `text`."""

        text: str

    def compose(self) -> ComposeResult:
        yield Static(_ABOUT, markup=False)
        yield Static("", classes="model", markup=False)
        yield Static("Tab goes to these prompts, Enter sends one:", classes="hint", markup=False)
        yield Prompts(*_PROMPTS, markup=False)

    def show(self, model: str, larger: str, *, is_guide: bool) -> None:
        """Show the model that answers.

        Args:
            model: name, size and speed; or why it cannot answer.
            larger: how to get a larger model; empty if none suits.
            is_guide: whether it is the guide, which only answers questions about Hearth.
        """
        lines = [Content.styled(safe_text(model), "bold")]
        if larger:
            lines.append(Content(safe_text(larger)))
        self.query_one(".model", Static).update(Content("\n").join(lines))
        prompts = self.query_one(OptionList)
        wanted = _GUIDE_PROMPTS if is_guide else _PROMPTS
        if prompts.highlighted is None or prompts.get_option_at_index(0).prompt != wanted[0]:
            prompts.set_options(wanted)
            prompts.highlighted = 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(str(event.option.prompt)))
