"""The doctor screen: the checks of `hearth doctor`, with causes and remedies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from hearth.app.doctor import Finding, examine
from hearth.app.settings import Settings
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.widgets.finding import FindingLine
from hearth.backends.errors import SettingsError

_MARKS: Final = {"ok": " ", "warning": "!", "fault": "x"}
_PATIENCE: Final = "Checking… the first self-test of llama.cpp takes a while."


class DoctorScreen(HearthScreen):
    """Runs the checks in a thread when it is first shown, and shows each finding at once."""

    NAME = "doctor"
    DEFAULT_CSS = """
    DoctorScreen #verdict { height: auto; padding: 0 1; margin: 0 0 1 0; }
    DoctorScreen VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again", "check again", id="doctor.again"),
        Binding("y", "copy", "copy as text", id="doctor.copy"),
    ]

    class Found(Message):
        """A finding of the examination with this number, or its end."""

        def __init__(self, run: int, finding: Finding | None) -> None:
            super().__init__()
            self.run = run
            self.finding = finding

    def __init__(self) -> None:
        super().__init__()
        self._run = 0
        self._findings: list[Finding] = []

    def body(self) -> ComposeResult:
        yield Static("", id="verdict", markup=False)
        yield VerticalScroll(id="findings")

    async def on_mount(self) -> None:
        """Run the checks."""
        self.query_one("#findings").focus()
        await self.action_again()

    async def action_again(self) -> None:
        """Run the checks again; findings of an earlier run are ignored."""
        self._run += 1
        self._findings.clear()
        await self.query_one("#findings").remove_children()
        self.query_one("#verdict", Static).update(_PATIENCE)
        self._examine(self._run)

    @work(thread=True, group="doctor", exclusive=True)
    def _examine(self, run: int) -> None:
        worker = get_current_worker()
        for finding in examine(self.services.paths, self._settings(), self.services.library):
            if worker.is_cancelled:
                return
            self.post_message(self.Found(run, finding))
        self.post_message(self.Found(run, None))

    def _settings(self) -> Settings | SettingsError:
        """The settings as they are now: the file may have been edited."""
        try:
            return self.services.reload()
        except SettingsError as error:
            return error

    def on_doctor_screen_found(self, message: Found) -> None:
        """Show the finding, and the verdict at the end."""
        if message.run != self._run:
            return
        if message.finding is None:
            self.query_one("#verdict", Static).update(verdict(self._findings))
            return
        self._findings.append(message.finding)
        self.query_one("#findings").mount(FindingLine(message.finding))

    def action_copy(self) -> None:
        """Copy the findings, as `hearth doctor` prints them."""
        self.app.copy_to_clipboard(as_text(self._findings))
        self.tell("Findings copied.")


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
    lines = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.state]} {finding.subject:16} {finding.text}")
        if finding.state != "ok":
            lines += (f"{'':19}{line}" for line in finding.cure.splitlines())
    return safe_text("\n".join(lines))
