"""The files of a repository, grouped by size: which fit, and which one is recommended."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, Static

from hearth.app import format as words
from hearth.app.library.fit import Fit, Speed
from hearth.app.library.hub_files import Choice
from hearth.app.library.menu import Menu
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.widgets.bars import KeyBar
from hearth.app.tui.widgets.cells import cell
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row

_COLUMNS: Final = (
    Column("Quant"),
    Column("Size", 9, right=True),
    Column("Fit", 7),
    Column("Needs", 14, right=True, least=74),
    Column("est. tok/s", 12, right=True, least=90),
    Column("", 11),
)
_MOST_REFUSED: Final = 3
_SHARE: Final = 0.92
"""Largest share of the height above the keys that the dialog takes."""
_LEAST_LINES: Final = 4
_FIT_STYLES: Final = {
    "fits": "$text-success",
    "tight": "$text-warning",
    "slow": "$text-warning",
    "cannot": "$text-error",
}


class PickFile(Dialog[Choice | None]):
    """The choices of a repository; returns None if the user cancels.

    Args:
        menu: the choices.
        endpoint: URL of the Hub, where terms are accepted.
        wanted: name of the choice selected at first; empty for the recommended one.
    """

    DEFAULT_CSS = """
    PickFile > .dialog {
        width: 92%; max-width: 110; height: auto; max-height: 92%; padding: 1 1 0 1;
    }
    PickFile Static { padding: 0 1; }
    PickFile .more { color: $text-muted; }
    PickFile .gated { color: $text-warning; }
    PickFile #about { height: 3; color: $text-muted; margin-top: 1; }
    PickFile.-narrow #about { height: 5; }
    PickFile ColumnList { margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", id="pick-file.close"),
        Binding("p", "take", "download", id="pick-file.take"),
    ]

    def __init__(self, menu: Menu, endpoint: str, wanted: str = "") -> None:
        super().__init__()
        self.title = menu.repository.repo_id
        self._menu = menu
        self._endpoint = endpoint
        self._wanted = menu.choice(wanted).name if wanted else menu.recommended

    def body(self) -> ComposeResult:
        repository = self._menu.repository
        yield Static(safe_text(self._facts()), classes="more", markup=False)
        if repository.gated:
            terms = f"{self._endpoint}/{repository.repo_id}"
            gated = f"Gated: accept its terms at {terms} and set HF_TOKEN first."
            yield Static(safe_text(gated), classes="gated", markup=False)
        yield ColumnList(*_COLUMNS)
        if refused := self._refused():
            yield Static(safe_text(refused), classes="more", markup=False)
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        """Fill the list, and select the wanted choice."""
        column_list = self.query_one(ColumnList)
        column_list.show(self._rows())
        # The list is filled once it knows its width.
        self.call_after_refresh(column_list.select, self._wanted)

    def on_resize(self) -> None:
        """Give the list the height that the lines around it leave."""
        self.call_after_refresh(self._fit_list)

    def _fit_list(self) -> None:
        dialog, column_list = self.query_one(".dialog"), self.query_one(ColumnList)
        around = sum(one.outer_size.height for one in dialog.children if one is not column_list)
        spaces = 3  # Above the list, its header, and above the description of the chosen one.
        room = self.size.height - self.query_one(KeyBar).outer_size.height
        most = int(room * _SHARE) - dialog.gutter.height - around - spaces
        column_list.list.styles.max_height = max(_LEAST_LINES, most)
        self.call_after_refresh(column_list.list.scroll_to_highlight)

    def _facts(self) -> str:
        repository = self._menu.repository
        parts = [
            repository.licence or "licence not stated",
            f"{words.count(repository.parameters)} weights" if repository.parameters else "",
            f"context {repository.context:,}" if repository.context else "",
            "gated" if repository.gated else "",
        ]
        return " · ".join(filter(None, parts))

    def _refused(self) -> str:
        refused = self._menu.offer.refused
        lines = [f"{file.path} is left out: {file.reason}." for file in refused[:_MOST_REFUSED]]
        if len(refused) > _MOST_REFUSED:
            lines.append(f"{len(refused) - _MOST_REFUSED} more are left out.")
        return "\n".join(lines)

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for group, choices in groupby(self._menu.choices, key=lambda choice: choice.group):
            rows.append(Row("", (group.capitalize(),)))
            rows += [self._row(choice) for choice in choices]
        return rows

    def _row(self, choice: Choice) -> Row:
        fit = self._menu.fits[choice.name]
        note = Content("")
        if choice.name == self._menu.recommended:
            note = Content.styled("Recommended", "bold $text-success")
        elif _is_here(choice, fit):
            note = Content.styled("installed", "$text-muted")
        about = "about " if fit.use.uncertain else ""
        return Row(
            choice.name,
            (
                Content("  ") + cell(choice.name),
                words.size(choice.size_bytes),
                fit_cell(fit),
                f"{about}{words.size(fit.use.needed)}",
                speed_words(fit.speed),
                note,
            ),
        )

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe how the highlighted choice fits."""
        name = event.option.id or ""  # Headings have no id, and cannot be highlighted.
        choice, fit = self._menu.choice(name), self._menu.fits[name]
        line = fit_line(fit)
        if _is_here(choice, fit):
            line = f"Installed. {line}"
        if choice.kind == "safetensors":
            line = f"For the native backend, which runs safetensors with PyTorch. {line}"
        self.query_one("#about", Static).update(safe_text(line))

    @on(OptionList.OptionSelected)
    def action_take(self) -> None:
        """Return the selected choice, to be downloaded."""
        name = self.query_one(ColumnList).selected
        if name is not None:
            self.dismiss(self._menu.choice(name))


def _is_here(choice: Choice, fit: Fit) -> bool:
    return not fit.download_bytes and choice.size_bytes > 0


def fit_cell(fit: Fit | None) -> Content:
    """The state of a fit in a word."""
    if fit is None:
        return Content("")
    if fit.fits_on_disk is False:
        return Content.styled("no disk", "$text-error")
    return Content.styled(fit.state, _FIT_STYLES[fit.state])


def speed_words(speed: Speed | None) -> str:
    """The speed in tokens per second, estimated from memory bandwidth; empty if unknown."""
    if speed is None:
        return ""
    limit = "up to " if speed.is_limit else "about "
    return f"{limit}{speed.tok_per_s:,.{1 if speed.tok_per_s < 10 else 0}f}"


def fit_line(fit: Fit) -> str:
    """A fit in one line, with the source of its speed estimate."""
    context = f"{fit.context:,} tokens of context"
    line = f"{fit.words} with {context}. {fit.reason}"
    if fit.speed is None:
        return line
    rate = speed_words(fit.speed)
    return f"{line} Estimated decode speed: {rate} tok/s, from {fit.speed.source}."
