"""What a method of quantization can be told, and on what the result is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Checkbox, Footer, Static

from hearth.app.library.compare_quality import Sample, bundled_sample
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import InvalidParameter
from hearth.quant.methods import Method, Option


@dataclass(frozen=True, slots=True)
class Wishes:
    """What somebody wants of a method.

    Attributes:
        options: values of the method's options by name; those that were not given are not in it.
        measures: perplexity and speed are measured before and after.
        text: path of the text for that; empty: the bundled one.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    measures: bool = True
    text: str = ""

    @property
    def words(self) -> str:
        """What is not as usual, in a line."""
        parts = []
        for name, value in self.options.items():
            told = value if isinstance(value, str) else " ".join(value) if value is not True else ""
            parts.append(f"{name} {told}".strip())
        if not self.measures:
            parts.append("nothing is measured")
        elif self.text:
            parts.append(f"measured on {self.text}")
        return " · ".join(parts)

    def sample(self, *, for_guide: bool) -> Sample | None:
        """The text to measure on; None if nothing is to be measured. Raises `InvalidParameter`
        where it cannot be read.
        """
        if not self.measures:
            return None
        if not self.text:
            return bundled_sample(for_guide=for_guide)
        try:
            return Sample(self.text, typed_path(self.text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameter(
                "text", f"{self.text} cannot be read as UTF-8 text: {error}.", "Name another file."
            ) from error


class QuantizeOptions(Dialog[Wishes | None]):
    """A form of a method's options; None: they stay as they were.

    Args:
        method: whose options they are.
        wishes: to begin with.
    """

    DEFAULT_CSS = """
    QuantizeOptions { align: center middle; }
    QuantizeOptions > .dialog {
        width: 92%; max-width: 90; height: auto; max-height: 92%;
        padding: 1 2; background: $surface; border: round $primary;
    }
    QuantizeOptions .title { text-style: bold; }
    QuantizeOptions .help { color: $text-muted; margin-top: 1; }
    QuantizeOptions .wrong { color: $text-error; height: auto; }
    QuantizeOptions SafeTextArea, QuantizeOptions SafeTextArea:focus {
        height: 4; border: none; padding: 0 1;
    }
    QuantizeOptions SafeInput, QuantizeOptions SafeInput:focus {
        height: 1; border: none; padding: 0 1;
    }
    QuantizeOptions Checkbox { border: none; padding: 0 1; background: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "take it", id="quantize-options.save", priority=True),
        Binding("escape", "dismiss(None)", "cancel", id="quantize-options.cancel"),
    ]

    def __init__(self, method: Method, wishes: Wishes) -> None:
        super().__init__()
        self._method = method
        self._wishes = wishes

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(f"Options of {self._method.title}", classes="title", markup=False)
            for option in self._method.options:
                yield from self._field(option)
            yield Static("Perplexity and speed, before and after.", classes="help", markup=False)
            yield Checkbox(
                Content("measure"),
                self._wishes.measures,
                id="measures",
                compact=True,
            )
            yield Static(
                "A text to measure on; empty: the bundled one.", classes="help", markup=False
            )
            yield SafeInput(
                self._wishes.text, placeholder="path of a text file", id="text", compact=True
            )
            yield Static("", classes="wrong", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def _field(self, option: Option) -> ComposeResult:
        value = self._wishes.options.get(option.name)
        place = f"option-{option.name}"
        if option.kind == "flag":
            yield Static(option.help, classes="help", markup=False)
            yield Checkbox(Content(option.name), bool(value), id=place, compact=True)
            return
        more = " One a line." if option.kind == "texts" else ""
        yield Static(f"{option.name}: {option.help}{more}", classes="help", markup=False)
        if option.kind == "texts":
            yield SafeTextArea("\n".join(value or ()), id=place, highlight_cursor_line=False)
        else:
            yield SafeInput(value or "", placeholder="path of a file", id=place, compact=True)

    def action_save(self) -> None:
        """Give back what was written, once every file is there."""
        try:
            options = {
                option.name: value
                for option in self._method.options
                if (value := self._value(option))
            }
            text = self.query_one("#text", SafeInput).value.strip()
            wishes = Wishes(options, self.query_one("#measures", Checkbox).value, text)
            wishes.sample(for_guide=False)
        except InvalidParameter as error:
            self.query_one(".wrong", Static).update(safe_text(f"{error.message} {error.hint}"))
            return
        self.dismiss(wishes)

    def _value(self, option: Option) -> Any:
        """What was written; something false if nothing was. Raises `InvalidParameter`."""
        place = f"#option-{option.name}"
        if option.kind == "flag":
            return self.query_one(place, Checkbox).value
        if option.kind == "texts":
            lines = self.query_one(place, SafeTextArea).text.splitlines()
            return [line.strip() for line in lines if line.strip()]
        path = self.query_one(place, SafeInput).value.strip()
        if not path:
            return ""
        file = typed_path(path)
        if not file.is_file():
            raise InvalidParameter(option.name, f"{path} is no file.", "Write its whole path.")
        return str(file)
