"""The settings screen: every setting and key binding, to search and edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.suggester import SuggestFromList
from textual.theme import Theme
from textual.widgets import Input, OptionList, Static

from hearth.app.nearest import did_you_mean
from hearth.app.settings import Settings
from hearth.app.settings_file import change, forget_setting, write_setting
from hearth.app.settings_keys import ALL, GENERAL, LOADING, SAMPLING, Key, Value, default_of
from hearth.app.terminal import safe_text
from hearth.app.tui.looks import apply_looks, bindings, check_keys
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput
from hearth.app.tui.widgets.sampling_form import expects, read, written
from hearth.backends.errors import SettingsError

_GROUPS: Final = (("General", GENERAL), ("Loading models", LOADING), ("Sampling", SAMPLING))
_AT_START: Final = ("library_folders", "host_idle_s", "models_memory", "max_models")
"""Settings that are read only when Hearth opens the library and the connection to the host."""
_EMPTY: Final = ("", "[]", "{}")
_COLUMNS = (Column("setting", 24), Column("value"), Column("from", 30, least=90))
_NARROW = 90


class SettingsScreen(HearthScreen):
    """Shows the values in effect and their origins, and edits them.

    Edits are written to the user's file, whose comments and order are kept. They apply at once to
    what starts after them; those of a few settings (`_AT_START`) apply when Hearth is restarted.
    """

    NAME = "settings"
    DEFAULT_CSS = """
    SettingsScreen #search { margin: 0 0 1 0; padding: 0 1; background: $surface; }
    SettingsScreen #list { height: 1fr; }
    SettingsScreen #list > OptionList { height: 1fr; }
    SettingsScreen #detail { height: auto; padding: 0 1; margin: 1 0 0 0; }
    SettingsScreen #detail > Static { height: auto; max-height: 3; }
    SettingsScreen #more { color: $text-muted; }
    SettingsScreen #edit { display: none; margin: 0; background: $surface; }
    SettingsScreen #edit.-shown { display: block; }
    SettingsScreen #wrong { color: $text-error; display: none; }
    SettingsScreen #wrong.-shown { display: block; }
    """
    AUTO_FOCUS = "#list OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "edit", "edit", id="settings.edit", tooltip="edit; enter does that too"),
        Binding("slash", "search", "search", id="settings.search"),
        Binding("space", "next", "next choice", id="settings.next"),
        Binding("delete,backspace", "reset", "default", id="settings.reset"),
        Binding("escape", "leave", "back", id="settings.leave", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, Entry] = {}
        self._edited = ""
        """Ident of the entry being edited; empty if none."""

    def body(self) -> ComposeResult:
        yield SafeInput(placeholder="Type to filter", id="search", compact=True)
        yield ColumnList(*_COLUMNS, empty="No matching settings.", header=False, id="list")
        with Vertical(id="detail"):
            yield Static("", id="what", markup=False)
            yield Static("", id="more", markup=False)
            yield SafeInput("", id="edit", compact=True)
            yield Static("", id="wrong", markup=False)

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._theme_changed)

    def _theme_changed(self, theme: Theme) -> None:
        """Read the entries again: the theme can be chosen in the palette over this screen."""
        if not self._edited:
            self._read()

    @property
    def list(self) -> ColumnList:
        """The list of settings and keys."""
        return self.query_one("#list", ColumnList)

    @property
    def chosen(self) -> Entry | None:
        """The entry that the lower part of the screen describes."""
        return self._entries.get(self.list.selected or "")

    # ---- what is shown

    @on(ScreenResume)
    def _read(self) -> None:
        """Read all entries again, because some may have been changed elsewhere."""
        all_entries = entries(self.services.settings, sorted(self.app.available_themes), bindings())
        self._entries = {entry.ident: entry for entry in all_entries}
        self._fill()

    @on(Input.Changed, "#search")
    def _fill(self) -> None:
        words = self.query_one("#search", Input).value.lower().split()
        rows: list[Row] = []
        group = ""
        for entry in self._entries.values():
            if not entry.matches(words):
                continue
            if entry.group != group:
                group = entry.group
                rows.append(Row("", (Content.styled(group, "bold $text-primary"),)))
            rows.append(Row(entry.ident, _cells(entry)))
        self.list.show(rows)
        self._show_chosen()

    @on(OptionList.OptionHighlighted)
    def _show_chosen(self) -> None:
        entry = self.chosen
        if entry is None or entry.ident != self._edited:
            self._close_edit()
        what, parts = Content(), list[str]()
        if entry is not None:
            what = Content.assemble((entry.name, "bold"), " · ", safe_text(entry.help))
            default = "none" if entry.default in _EMPTY else entry.default
            parts = [f"Takes {entry.expects}", f"default {default}"]
            if self.size.width < _NARROW or len(entry.origin) > _COLUMNS[-1].width:
                parts.append(f"from {entry.origin}")
        self.query_one("#what", Static).update(what)
        self.query_one("#more", Static).update(safe_text(" · ".join(parts)))

    # ---- search

    def action_search(self) -> None:
        """Focus the filter."""
        self.query_one("#search", Input).focus()

    @on(Input.Submitted, "#search")
    def _found(self) -> None:
        self.list.list.focus()

    # ---- editing

    @on(OptionList.OptionSelected)
    def action_edit(self) -> None:
        """Edit the chosen entry."""
        entry = self.chosen
        if entry is not None:
            self._edited = entry.ident
            edit = self.query_one("#edit", Input)
            edit.suggester = SuggestFromList(entry.choices) if entry.choices else None
            edit.value = entry.text
            edit.cursor_position = len(entry.text)
            edit.add_class("-shown")
            edit.focus()

    @on(Input.Changed, "#edit")
    def _check(self, event: Input.Changed) -> None:
        """Show what is wrong while the user types; a valid theme is applied at once."""
        entry = self.chosen
        if entry is None or entry.ident != self._edited:
            return
        if self._is_right(entry, event.value) and entry.name == "theme":
            self.app.theme = event.value

    @on(Input.Submitted, "#edit")
    def _enter(self, event: Input.Submitted) -> None:
        entry = self.chosen
        if entry is None or entry.ident != self._edited or not self._is_right(entry, event.value):
            return
        if self._apply(entry, event.value):
            self._close_edit()

    def _is_right(self, entry: Entry, text: str) -> bool:
        """Whether `entry` accepts `text`; if not, show the reason."""
        wrong = ""
        try:
            entry.check(text)
        except (ValueError, SettingsError) as error:
            wrong = str(error.args[0])  # Without the hint.
        self._say_wrong(wrong)
        return not wrong

    def action_next(self) -> None:
        """Set the next choice; edit settings that have no choices."""
        entry = self.chosen
        if entry is not None and entry.choices:
            at = entry.choices.index(entry.text) if entry.text in entry.choices else -1
            self._apply(entry, entry.choices[(at + 1) % len(entry.choices)])
        else:
            self.action_edit()

    def action_reset(self) -> None:
        """Remove the chosen entry from the file, so that its default applies."""
        if (entry := self.chosen) is not None:
            self._apply(entry, None)

    def action_leave(self) -> None:
        """Cancel the edit, or clear the filter."""
        if self._edited:
            self._close_edit()
        elif self.query_one("#search", Input).has_focus:
            self.query_one("#search", Input).clear()
            self.list.list.focus()

    def _close_edit(self) -> None:
        if not self._edited:
            return
        self._edited = ""
        edit = self.query_one("#edit")
        if edit.has_focus:
            self.list.list.focus()
        edit.remove_class("-shown")
        self._say_wrong("")
        self._take_effect()  # Undoes the preview of a theme.

    def _say_wrong(self, text: str) -> None:
        wrong = self.query_one("#wrong", Static)
        wrong.update(safe_text(text[:1].upper() + text[1:]))
        wrong.set_class(bool(text), "-shown")

    def _apply(self, entry: Entry, text: str | None) -> bool:
        """Write the valid `text`, or remove the entry if it is None, and apply the change.

        False if the file cannot be written; the error is shown.
        """
        file = self.services.paths.settings_file
        try:
            entry.write(file, text)
            self.services.use_settings()
        except SettingsError as error:
            self.show_error(error)
            return False
        self._take_effect()
        if entry.is_key:
            self.hearth.notify_key_clashes()
        self._read()
        now = self._entries[entry.ident]
        if file.name not in now.origin and now.origin != "default":
            done = "Saved" if text is not None else "Removed from the file"
            self.show_notice(
                f"{done}, but {now.origin} overrides it: {now.text}.", severity="warning"
            )
        elif entry.name in _AT_START and now.text != entry.text:
            self.show_notice("Takes effect when Hearth is started again.")
        return True

    def _take_effect(self) -> None:
        with self.errors_shown():
            apply_looks(self.app, self.services.settings)


def _cells(entry: Entry) -> tuple[str | Content, ...]:
    value = "–" if entry.text in _EMPTY else safe_text(entry.text.replace("\n", "↵"))
    is_default = entry.origin == "default"
    return (
        entry.name,
        Content.styled(value, "dim" if is_default else "bold $text-accent"),
        Content.styled(safe_text("" if is_default else entry.origin), "dim"),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, or one binding of the terminal app.

    Attributes:
        name: name in the settings file.
        text: value, as the user edits it.
        origin: where the value comes from.
        default: value if it is not set.
        help: what the setting does.
        expects: description of the accepted values.
        choices: the accepted values, if they are few.
        is_key: whether it is a binding, in the table `[keys]`.
    """

    group: str
    name: str
    text: str
    origin: str
    default: str
    help: str
    expects: str
    choices: tuple[str, ...] = ()
    is_key: bool = False

    @property
    def ident(self) -> str:
        """Identifies the entry among all others."""
        return f"{'key' if self.is_key else 'set'}:{self.name}"

    def matches(self, words: Sequence[str]) -> bool:
        """Whether the entry's texts contain all of `words`, which are in lower case."""
        said = f"{self.group} {self.name} {self.text} {self.help}".lower()
        return all(word in said for word in words)

    def check(self, text: str) -> Value:
        """The value of `text`. Raises ValueError or `SettingsError` if `text` is invalid."""
        if self.is_key:
            return check_keys(self.name, text)
        value = read(ALL[self.name], text)
        if self.name == "theme" and str(value) not in self.choices:
            raise ValueError(f"there is no theme {text!r}.{did_you_mean(text, self.choices)}")
        return value

    def write(self, file: Path, text: str | None) -> None:
        """Write `text` to the settings file; None restores the default.

        Raises what `check` and writing the file raise.
        """
        if self.is_key:
            change(file, ("keys",), self.name, None if text is None else self.check(text))
        elif text is None:
            forget_setting(file, ALL[self.name])
        else:
            write_setting(file, ALL[self.name], self.check(text))


def entries(
    settings: Settings, themes: Sequence[str], bindings: Mapping[str, Binding]
) -> Iterator[Entry]:
    """Every setting by group, then every binding."""
    in_force = settings.all()
    for group, declared in _GROUPS:
        for key in declared:
            setting = in_force[key.name]
            yield Entry(
                group,
                key.name,
                written(key, setting.value),
                _short(setting.origin, settings.file),
                written(key, default_of(key)),
                key.help,
                "one of the themes" if key.name == "theme" else expects(key),
                tuple(themes) if key.name == "theme" else _choices(key),
            )
    for ident, binding in bindings.items():
        own = settings.keymap.get(ident)
        yield Entry(
            "Keys of the terminal app",
            ident,
            own or binding.key,
            "default" if own is None else f"{settings.file.name}, [keys]",
            binding.key,
            binding.tooltip or binding.description,
            'keys with commas between, such as "f1,ctrl+h"',
            is_key=True,
        )


def _short(origin: str, file: Path) -> str:
    """`origin`, with the settings file shown without its folder."""
    return origin.replace(str(file), file.name)


def _choices(key: Key) -> tuple[str, ...]:
    few = ("true", "false") if key.kind == "bool" else key.choices
    return (*few, "auto") if few and key.auto else few
