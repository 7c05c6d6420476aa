"""Which file of a repository to take: grouped by size, one recommended, and whether it fits."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.library.fit import Fit
from hearth.app.library.hub import Repository
from hearth.app.library.hub_files import Choice, Offer
from hearth.app.sizes import format_size
from hearth.app.terminal import safe_text

_GROUPS = {"small": "Small", "balanced": "Balanced", "large": "Large"}


class PickFile(ModalScreen[Choice | None]):
    """The choices of a repository.

    Args:
        fits: of each choice by its name, as far as that is known.
    """

    DEFAULT_CSS = """
    PickFile { align: center middle; }
    PickFile > Vertical {
        width: 90%; max-width: 90; height: auto; max-height: 90%;
        padding: 1 2; background: $surface;
    }
    PickFile OptionList { height: auto; max-height: 24; border: none; margin: 1 0; }
    PickFile .title { text-style: bold; }
    PickFile .more { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", id="pick.close"),
    ]

    def __init__(
        self, repository: Repository, offer: Offer, fits: dict[str, Fit] | None = None
    ) -> None:
        super().__init__()
        self._repository = repository
        self._offer = offer
        self._fits = fits or {}

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(safe_text(self._repository.repo_id), classes="title", markup=False)
            yield Static(safe_text(self._about()), classes="more", markup=False)
            yield OptionList(*self._options(), markup=False)
            yield Static(safe_text(self._refused()), classes="more", markup=False)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.focus()
        options.highlighted = options.get_option_index(self._offer.recommended.name)

    def _about(self) -> str:
        licence = self._repository.licence or "no licence named"
        gated = ", gated: accept the licence on the Hub first" if self._repository.gated else ""
        return f"{licence}{gated}"

    def _refused(self) -> str:
        return "\n".join(f"{file.path}: {file.reason}" for file in self._offer.refused[:3])

    def _options(self) -> list[Option]:
        options: list[Option] = []
        group = ""
        for choice in self._offer.choices:
            if choice.group != group:
                group = choice.group
                options.append(Option(Content.styled(_GROUPS[group], "bold"), disabled=True))
            options.append(Option(self._line(choice), id=choice.name))
        return options

    def _line(self, choice: Choice) -> Content:
        fit = self._fits.get(choice.name)
        return Content.assemble(
            f"  {safe_text(choice.name):<14} {format_size(choice.size_bytes):>10}  ",
            (f"{fit.state:<7}" if fit is not None else "", "$text-muted"),
            ("  Recommended" if choice.recommended else "", "bold $success"),
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        chosen = [one for one in self._offer.choices if one.name == event.option.id]
        self.dismiss(chosen[0])
