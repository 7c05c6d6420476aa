"""`hearth doctor`: what is found on this machine, what is wrong with it, and the cure."""

from __future__ import annotations

from dataclasses import asdict

import click

from hearth.app.cli.options import json_option
from hearth.app.cli.state import State, pass_state
from hearth.app.doctor import examine
from hearth.app.exit_codes import ExitCode
from hearth.app.finding import Finding
from hearth.app.settings import Settings
from hearth.backends.errors import HearthError, SettingsError

_MARKS = {"ok": " ", "warning": "!", "fault": "x"}
_WIDTH = 16


@click.command("doctor")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure first which backend is faster here, for each kind of GGUF in the library.",
)
@json_option
@pass_state
def doctor(state: State, measure: bool, as_json: bool) -> int:
    """Check the installation; the exit code is 1 if something is broken.

    A line with an x is a fault, one with ! works but could be better; the cure stands below it.

    --measure takes some seconds for each kind, which --backend auto goes by from then on. Let
    nothing else run meanwhile.
    """
    if measure:
        _measure(state)
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


def _measure(state: State) -> None:
    """Find out which runner is faster, with a line about each step."""
    from hearth.app.paths import own_folder
    from hearth.app.speeds import kinds_here, measure_kinds

    kinds = kinds_here(state.library)
    if not kinds:
        state.output.note("There is no GGUF here that both backends can run.")
        return

    def failed(kind: str, error: HearthError) -> None:
        state.output.note(f"{kind} cannot be measured: {error.message}")

    measure_kinds(
        kinds,
        own_folder(state.paths.cache),
        own_folder(state.paths.log),
        on_begin=lambda what: state.output.note(f"measuring {what} …"),
        on_failure=failed,
    )


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
