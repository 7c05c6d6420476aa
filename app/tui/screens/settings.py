"""The settings screen: every setting and key binding, to search and edit."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.theme import Theme
from textual.widgets import Input, OptionList, Static

from hearth.app.terminal import safe_text
from hearth.app.tui.looks import apply_looks, bindings
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.setting_entries import Entry, entries
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import SettingsError

_COLUMNS = (Column("setting", 24), Column("value"), Column("from", 30, least=90))
_NARROW = 90


class SettingsScreen(HearthScreen):
    """The values in effect and their origins. Edits are written into the user's file, whose
    comments and order are kept, and apply at once to what starts after them.
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

    def body(self) -> ComposeResult:
        yield SafeInput(placeholder="Type to filter", id="search", compact=True)
        yield ColumnList(*_COLUMNS, empty="No matching settings.", header=False, id="list")
        with Vertical(id="detail"):
            yield Static("", id="what", markup=False)
            yield Static("", id="more", markup=False)
            yield SafeInput("", id="edit", compact=True)
            yield Static("", id="wrong", markup=False)

    def on_mount(self) -> None:
        """Show all of them."""
        self.list.list.focus()
        self._read()
        self.app.theme_changed_signal.subscribe(self, self._theme_changed)

    def on_screen_resume(self) -> None:
        """Read them again: they may have been changed elsewhere."""
        if self._entries:
            self._read()

    def _theme_changed(self, theme: Theme) -> None:
        """It may have been chosen in the palette, which is open over this screen."""
        if not self.query_one("#edit").has_class("-shown"):
            self._read()

    @property
    def list(self) -> ColumnList:
        """The settings and keys."""
        return self.query_one("#list", ColumnList)

    @property
    def chosen(self) -> Entry | None:
        """What the lower part of the screen is about."""
        return self._entries.get(self.list.selected or "")

    # ---- what is shown

    def _read(self) -> None:
        found = entries(self.services.settings, sorted(self.app.available_themes), bindings())
        self._entries = {entry.ident: entry for entry in found}
        self._fill()

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

    def _show_chosen(self) -> None:
        entry = self.chosen
        what, more = self.query_one("#what", Static), self.query_one("#more", Static)
        if entry is None:
            what.update("")
            more.update("")
            return
        what.update(Content.assemble((entry.name, "bold"), " · ", safe_text(entry.help)))
        parts = [f"Takes {entry.expects}", f"default {entry.default or 'none'}"]
        if self.size.width < _NARROW or len(entry.origin) > _COLUMNS[-1].width:
            parts.append(f"from {entry.origin}")
        more.update(safe_text(" · ".join(parts)))

    # ---- search

    def action_search(self) -> None:
        """Focus the filter."""
        self.query_one("#search", Input).focus()

    @on(Input.Changed, "#search")
    def _search(self) -> None:
        self._fill()

    @on(Input.Submitted, "#search")
    def _found(self) -> None:
        self.list.list.focus()

    # ---- editing

    def on_option_list_option_highlighted(self) -> None:
        """Another one is chosen."""
        self._show_chosen()

    @on(OptionList.OptionSelected)
    def action_edit(self) -> None:
        """Edit the chosen one."""
        entry = self.chosen
        if entry is not None:
            edit = self.query_one("#edit", Input)
            edit.suggester = SuggestFromList(entry.choices) if entry.choices else None
            edit.value = entry.text
            edit.cursor_position = len(entry.text)
            edit.add_class("-shown")
            edit.focus()

    @on(Input.Changed, "#edit")
    def _check(self, event: Input.Changed) -> None:
        """Show what is wrong while the user types; a theme is shown at once."""
        entry = self.chosen
        if entry is None or not event.input.has_class("-shown"):
            return
        wrong = ""
        try:
            entry.check(event.value)
        except ValueError as error:
            wrong = f"{error}"
        except SettingsError as error:
            wrong = error.message
        self._say_wrong(wrong)
        if entry.name == "theme" and not wrong:
            self.app.theme = event.value

    @on(Input.Submitted, "#edit")
    def _enter(self, event: Input.Submitted) -> None:
        entry = self.chosen
        if entry is not None and self._write(entry, event.value):
            self._close_edit()

    def action_next(self) -> None:
        """Take the next choice; edit settings that have none."""
        entry = self.chosen
        if entry is None:
            return
        if not entry.choices:
            self.action_edit()
            return
        at = entry.choices.index(entry.text) if entry.text in entry.choices else -1
        self._write(entry, entry.choices[(at + 1) % len(entry.choices)])

    def action_reset(self) -> None:
        """Remove the chosen one from the file, so that its default applies."""
        entry = self.chosen
        if entry is not None:
            self._apply(entry, None)

    def action_leave(self) -> None:
        """Cancel the edit, or clear the filter."""
        if self.query_one("#edit").has_class("-shown"):
            self._close_edit()
            self._take_effect()
        elif self.query_one("#search", Input).has_focus:
            self.query_one("#search", Input).clear()
            self.list.list.focus()

    def _close_edit(self) -> None:
        self.query_one("#edit").remove_class("-shown")
        self._say_wrong("")
        self.list.list.focus()

    def _say_wrong(self, text: str) -> None:
        wrong = self.query_one("#wrong", Static)
        wrong.update(safe_text(text[:1].upper() + text[1:]))
        wrong.set_class(bool(text), "-shown")

    def _write(self, entry: Entry, text: str) -> bool:
        """Write the value; False if it cannot be, which is shown."""
        try:
            entry.check(text)
        except ValueError as error:
            self._say_wrong(str(error))
            return False
        except SettingsError as error:
            self._say_wrong(error.message)
            return False
        return self._apply(entry, text)

    def _apply(self, entry: Entry, text: str | None) -> bool:
        """Write `text`, or with None remove the entry; then apply it."""
        file = self.services.paths.settings_file
        try:
            if text is None:
                entry.reset(file)
            else:
                entry.write(file, text)
            self.services.settings = self.services.reload()
        except SettingsError as error:
            self.tell_error(error)
            return False
        self._take_effect()
        if entry.is_key:
            self.hearth.tell_key_clashes()
        self._read()
        now = self._entries[entry.ident]
        if text is not None and file.name not in now.origin and now.origin != "default":
            self.tell(f"Saved, but {now.origin} overrides it: {now.text}.", severity="warning")
        return True

    def _take_effect(self) -> None:
        try:
            apply_looks(self.app, self.services.settings)
        except SettingsError as error:
            self.tell_error(error)


def _cells(entry: Entry) -> tuple[str | Content, ...]:
    value = safe_text(entry.text.replace("\n", "↵")) or "–"
    is_default = entry.origin == "default"
    return (
        entry.name,
        Content.styled(value, "dim" if is_default else "bold $text-accent"),
        Content.styled(safe_text("" if is_default else entry.origin), "dim"),
    )
