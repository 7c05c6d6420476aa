"""`hearth doctor`: what is found on this machine, what is wrong with it, and the cure."""

from __future__ import annotations

from dataclasses import asdict

import click

from hearth.app.cli.options import json_option
from hearth.app.cli.state import State, pass_state
from hearth.app.doctor import Finding, examine
from hearth.app.exit_codes import ExitCode
from hearth.app.settings import Settings
from hearth.backends.errors import HearthError, SettingsError

_MARKS = {"ok": " ", "warning": "!", "fault": "x"}
_WIDTH = 16


@click.command("doctor")
@json_option
@pass_state
def doctor(state: State, as_json: bool) -> int:
    """Check the installation; the exit code is 1 if something is broken.

    A line with an x is a fault, one with ! works but could be better; the cure stands below it.
    """
    findings = []
    for finding in examine(state.paths, _settings(state), state.library):
        findings.append(finding)
        if not as_json:
            _print(state, finding)
    faults = [finding for finding in findings if finding.state == "fault"]
    if as_json:
        state.output.json(
            {"healthy": not faults, "findings": [asdict(finding) for finding in findings]}
        )
    elif faults:
        state.output.problem(
            f"Broken: {', '.join(finding.subject for finding in faults)}. The cures stand above."
        )
    return ExitCode.FAILED if faults else ExitCode.OK


def _settings(state: State) -> Settings | HearthError:
    try:
        return state.settings
    except SettingsError as error:
        return error


def _print(state: State, finding: Finding) -> None:
    state.output.data(f"{_MARKS[finding.state]} {finding.subject:{_WIDTH}} {finding.text}")
    if finding.state != "ok":
        for line in finding.cure.splitlines():
            state.output.data(f"{'':{_WIDTH + 3}}{line}")
