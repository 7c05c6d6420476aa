"""The endpoint screen: on and off, address, key, and the last requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import ScreenResume
from textual.message import Message
from textual.widgets import Checkbox, Input, Label, Static

from hearth.app import clients as examples
from hearth.app.endpoint_control import EndpointControl, launch
from hearth.app.server.logs import REQUESTS_LOG, Answered, last_requests
from hearth.app.settings_file import write_setting
from hearth.app.settings_keys import ALL
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.widgets.column_list import Cell, Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError, SettingsError

_LOOK_EVERY_S: Final = 1.0
_MOST_REQUESTS: Final = 100
_COLUMNS: Final = (
    Column("time", 8),
    Column("method", 6, least=76),
    Column("path"),
    Column("status", 6, right=True),
    Column("ms", 8, right=True),
    Column("prompt", 8, right=True, least=90),
    Column("generated", 9, right=True, least=72),
    Column("model", 18, least=110),
)
_STATES: Final = {
    "off": ("○", "dim"),
    "starting": ("◌", "$text-warning"),
    "on": ("●", "$text-success"),
    "stopping": ("◌", "$text-warning"),
}
_EXAMPLES: Final = {
    "curl": ("With curl", examples.curl),
    "python": ("With the openai package", examples.python),
}
_HIDDEN: Final = "•" * 16
_LOADING: Final = "Loading…"


class EndpointFields(Horizontal):
    """Host, port and key, from the settings; `Changed` is posted when an edit is complete."""

    DEFAULT_CSS = """
    EndpointFields { height: 1; padding: 0 1; }
    EndpointFields > Label { width: auto; color: $text-muted; padding: 0 1 0 0; }
    EndpointFields > Input { width: 20; margin: 0 3 0 0; }
    EndpointFields > #serve_port { width: 9; }
    EndpointFields > Checkbox { width: auto; }
    """

    @dataclass
    class Changed(Message):
        """The user set the setting `name` to `text`."""

        name: str
        text: str

    def __init__(self, host: str, port: str, *, key: bool) -> None:
        super().__init__()
        self._values = {"serve_host": host, "serve_port": port, "serve_key": _word(key)}

    def compose(self) -> ComposeResult:
        yield Label("host", markup=False)
        yield SafeInput(self._values["serve_host"], id="serve_host", compact=True)
        yield Label("port", markup=False)
        yield SafeInput(self._values["serve_port"], id="serve_port", compact=True)
        yield Checkbox(
            "require a key", self._values["serve_key"] == "true", id="serve_key", compact=True
        )

    def show(self, host: str, port: str, *, key: bool) -> None:
        """Show the values in effect; a field with focus keeps its text."""
        self._values = {"serve_host": host, "serve_port": port, "serve_key": _word(key)}
        for field in self.query(Input):
            if not field.has_focus:
                field.value = self._values[field.id or ""]
        self.query_one(Checkbox).value = key

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _text_changed(self, event: Input.Submitted | Input.Blurred) -> None:
        event.stop()
        self._change(event.input.id or "", event.value.strip())

    @on(Checkbox.Changed)
    def _key_changed(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._change("serve_key", _word(event.value))

    def _change(self, name: str, text: str) -> None:
        if text != self._values[name]:
            self._values[name] = text
            self.post_message(self.Changed(name, text))


def _word(value: bool) -> str:
    return "true" if value else "false"


class EndpointScreen(HearthScreen):
    """Starts and stops an endpoint, which ends with the app.

    An endpoint that `hearth serve` runs is separate, but the list shows the requests of both.
    """

    NAME = "endpoint"
    DEFAULT_CSS = """
    EndpointScreen > Static { padding: 0 1; }
    EndpointScreen #state { height: 1; }
    EndpointScreen #said { height: auto; max-height: 4; color: $text-muted; margin: 0 0 1 0; }
    EndpointScreen #said.-error { color: $text-error; }
    EndpointScreen #key { height: 1; padding: 0 1; margin: 0 0 1 0; color: $text-muted; }
    EndpointScreen #example-title { height: 1; text-style: bold; }
    EndpointScreen #example { height: auto; margin: 0 0 1 0; color: $text-muted; }
    EndpointScreen #requests { height: 1fr; min-height: 4; }
    EndpointScreen #requests > OptionList { height: 1fr; }
    EndpointScreen.-narrow EndpointFields > Input { width: 14; margin: 0 1 0 0; }
    EndpointScreen.-narrow EndpointFields > #serve_port { width: 7; }
    EndpointScreen.-short #example-title, EndpointScreen.-short #example { display: none; }
    """
    VERTICAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [  # type: ignore[misc]
        (0, "-short"),
        (22, "-tall"),
    ]
    AUTO_FOCUS = "#requests OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "switch", "on / off", id="endpoint.switch"),
        Binding("a", "copy_address", "copy address", id="endpoint.copy-address"),
        Binding("k", "copy_key", "copy key", id="endpoint.copy-key"),
        Binding("v", "show_key", "show key", id="endpoint.show-key", show=False),
        Binding("c", "copy_example", "copy example", id="endpoint.copy-example"),
        Binding("p", "other_example", "other example", id="endpoint.other-example", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.control = EndpointControl(self._changed)
        self._shows_key = False
        self._example = "curl"

    def body(self) -> ComposeResult:
        yield Static("", id="state", markup=False)
        yield Static("", id="said", markup=False)
        yield EndpointFields(self._host, str(self._port), key=self._asks_key)
        yield Horizontal(Static("", id="key-text", markup=False), id="key")
        yield Static("", id="example-title", markup=False)
        yield Static("", id="example", markup=False)
        yield ColumnList(*_COLUMNS, title="Last requests", empty=_LOADING, id="requests")

    def on_mount(self) -> None:
        self.while_shown(_LOOK_EVERY_S, self.look)
        self.look()

    async def on_unmount(self) -> None:
        """Stop the endpoint with the app."""
        await self.control.close()

    # ---- settings

    @property
    def _host(self) -> str:
        return self.services.settings.text("serve_host")

    @property
    def _port(self) -> int:
        return int(self.services.settings.text("serve_port"))

    @property
    def _asks_key(self) -> bool:
        return self.services.settings.all()["serve_key"].value is True

    @property
    def _key(self) -> examples.KeyPlace:
        return examples.key_place(self.services.paths.api_key_file, asks=self._asks_key)

    def on_endpoint_fields_changed(self, message: EndpointFields.Changed) -> None:
        """Save what was entered, if it is valid."""
        key = ALL[message.name]
        try:
            write_setting(self.services.paths.settings_file, key, key.parse(message.text))
            self.services.use_settings()
        except ValueError as error:
            self.show_notice(f"{key.name}: {error}.", severity="error")
        except SettingsError as error:
            self.show_error(error)
        else:
            if self.control.state != "off":
                self.show_notice("Takes effect when the endpoint is switched on again.")
        self._show()

    # ---- what is shown

    def _changed(self) -> None:
        if self.query("#state"):  # The app may be leaving.
            self._show()

    @on(ScreenResume)
    def _show(self) -> None:
        """Show the state and the settings, which another screen may have changed."""
        control = self.control
        mark, color = _STATES[control.state]
        state = ((f"{mark} {control.state}", color), "  ", (control.url, "bold"))
        self.query_one("#state", Static).update(Content.assemble(*state))
        self.query_one("#said").set_class(control.error is not None, "-error")
        self.query_one(EndpointFields).show(self._host, str(self._port), key=self._asks_key)
        for name, text in (
            ("said", self._said()),
            ("key-text", self._key_line()),
            ("example-title", _EXAMPLES[self._example][0]),
            ("example", self._example_text()),
        ):
            self.query_one(f"#{name}", Static).update(safe_text(text))

    def _said(self) -> str:
        control = self.control
        if control.error is not None:
            return str(control.error)
        if control.state == "off":
            return "Space starts the endpoint, which stops when the app quits."
        return control.says.replace("Ctrl+C", "Space")  # The text is for a shell.

    def _key_line(self) -> str:
        if not self._key.asked:
            return "no key required"
        try:
            key = self._key.read()
        except HearthError as error:
            return error.message
        if not key:
            return "a key is created when the endpoint is first switched on"
        return f"key {key if self._shows_key else _HIDDEN}"

    @property
    def _url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return self.control.url or f"http://{host}:{self._port}/v1"

    def _example_text(self) -> str:
        _, make = _EXAMPLES[self._example]
        return make(self._url, self.services.settings.text("model"), self._key)

    @work(group="endpoint.look", exclusive=True)
    async def look(self) -> None:
        """Read the last requests."""
        path = self.services.paths.log / REQUESTS_LOG
        logged = await asyncio.to_thread(last_requests, path, _MOST_REQUESTS)
        requests = self.query_one("#requests", ColumnList)
        requests.show(_rows(logged), empty="No requests yet.")

    # ---- actions

    @work(group="endpoint.switch")
    async def action_switch(self) -> None:
        """Switch the endpoint on or off; again, while it waits for requests, stops them."""
        if self.control.state != "off":
            self.control.stop()
            return
        how = launch(self.services.settings, self._host, self._port, key=self._asks_key)
        await self.succeeds(self.control.start(how))

    def action_copy_address(self) -> None:
        """Copy the address."""
        self._copy(self._url, "Address")

    def action_copy_key(self) -> None:
        """Copy the key."""
        with self.errors_shown():
            if key := self._key.read():
                self._copy(key, "Key")
            else:
                self.show_notice("No key to copy.")

    def action_show_key(self) -> None:
        """Show the key, or hide it again."""
        self._shows_key = not self._shows_key
        self._show()

    def action_copy_example(self) -> None:
        """Copy the example."""
        self._copy(self._example_text(), "Example")

    def action_other_example(self) -> None:
        """Show the example for another client."""
        self._example = "python" if self._example == "curl" else "curl"
        self._show()

    def _copy(self, text: str, what: str) -> None:
        self.app.copy_to_clipboard(text)
        self.show_notice(f"{what} copied.")


def _rows(found: Sequence[Answered]) -> list[Row]:
    """A row for each request, whose key does not change when more requests arrive."""
    seen: Counter[float] = Counter()
    rows = []
    for one in reversed(found):
        seen[one.at] += 1
        rows.append(Row(f"{one.at}/{seen[one.at]}", _cells(one)))
    return rows[::-1]


def _cells(one: Answered) -> tuple[Cell, ...]:
    color = "$text-success" if one.status < 400 else "$text-error"
    return (
        time.strftime("%H:%M:%S", time.localtime(one.at)),
        safe_text(one.method),
        safe_text(one.path),
        Content.styled(str(one.status), color),
        f"{one.ms:,.0f}",
        f"{one.prompt_tokens:,}" if one.prompt_tokens else "–",
        f"{one.generated_tokens:,}" if one.generated_tokens else "–",
        safe_text(one.model),
    )
