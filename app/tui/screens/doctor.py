"""The doctor screen: the checks of `hearth doctor`, with causes and remedies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Mount
from textual.widgets import Static

from hearth.app.doctor import Finding, examine
from hearth.app.settings import Settings
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.widgets.finding import FindingLine
from hearth.backends.errors import SettingsError

_PATIENCE: Final = "Checking… the first self-test of llama.cpp takes a while."


class DoctorScreen(HearthScreen):
    """Runs the checks in threads when it is first shown, and shows each finding at once."""

    NAME = "doctor"
    DEFAULT_CSS = """
    DoctorScreen #verdict { height: auto; padding: 0 1; margin: 0 0 1 0; }
    DoctorScreen VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again", "check again", id="doctor.again"),
        Binding("y", "copy", "copy as text", id="doctor.copy"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._findings: list[Finding] = []

    def body(self) -> ComposeResult:
        yield Static("", id="verdict", markup=False)
        yield VerticalScroll(id="findings")

    @on(Mount)
    @work(group="doctor")
    async def action_again(self) -> None:
        """Run the checks again; findings of an earlier run are ignored."""
        summary, lines = self.query_one("#verdict", Static), self.query_one("#findings")
        findings = self._findings = list[Finding]()
        await lines.remove_children()
        summary.update(_PATIENCE)
        settings = await asyncio.to_thread(self._settings)
        checks = iter(examine(self.services.paths, settings, self.services.library))
        while finding := await asyncio.to_thread(next, checks, None):
            if findings is not self._findings:
                return
            findings.append(finding)
            lines.mount(FindingLine(finding))
        if findings is self._findings:
            summary.update(verdict(findings))

    def _settings(self) -> Settings | SettingsError:
        """The settings as they are now: the file may have been edited."""
        try:
            return self.services.reload()
        except SettingsError as error:
            return error

    def action_copy(self) -> None:
        """Copy the findings, as `hearth doctor` prints them."""
        self.app.copy_to_clipboard(as_text(self._findings))
        self.show_notice("Findings copied.")


def verdict(findings: Sequence[Finding]) -> Content:
    """A summary in one line."""
    faults = sum(finding.state == "fault" for finding in findings)
    warnings = sum(finding.state == "warning" for finding in findings)
    if faults:
        broken = f"{faults} problem{'' if faults == 1 else 's'}; the remedies are below."
        return Content.styled(broken, "bold $text-error")
    if warnings:
        better = f"No problems; {warnings} warning{'' if warnings == 1 else 's'}."
        return Content.styled(better, "bold $text-warning")
    return Content.styled("No problems found.", "bold $text-success")


def as_text(findings: Sequence[Finding]) -> str:
    """The findings in plain lines, for a report."""
    return safe_text("\n".join(line for finding in findings for line in finding.lines))
