"""Reports the exception that ends a command: a message (or JSON) and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import asdict
from datetime import UTC, datetime

import click

from hearth.app.cli.output import Output
from hearth.app.exit_codes import ExitCode
from hearth.app.paths import find_paths, private_folder
from hearth.backends.errors import HearthError, InternalError, to_info
from hearth.backends.machine.logs import open_log

_ISSUES = "If it happens again, please report it with that file."


class UsageProblem(HearthError):
    """A command line that cannot be parsed."""

    code = "usage"
    exit_code = ExitCode.USAGE


def report(error: BaseException, *, as_json: bool) -> int:
    """Print `error`; returns the exit code. SystemExit and the like are raised again."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED
    if not isinstance(error, Exception):
        raise error
    known = _typed(error)
    output = Output()
    if os.environ.get("HEARTH_DEBUG") and not isinstance(error, click.ClickException):
        output.note("".join(traceback.format_exception(error)).rstrip())
    if as_json:
        output.json({"error": asdict(to_info(known))})
    else:
        output.error(known)
    return known.exit_code


def _typed(error: Exception) -> HearthError:
    if isinstance(error, HearthError):
        return error
    if isinstance(error, click.ClickException):
        command = (
            error.ctx.command_path
            if isinstance(error, click.UsageError) and error.ctx
            else "hearth"
        )
        return UsageProblem(error.format_message(), f"{command} -h shows how to use it.")
    return InternalError(f"{type(error).__name__}: {error}", _keep(error))


def _keep(error: Exception) -> str:
    """Write the traceback to the log file, whose size is limited; returns the hint."""
    try:
        path = private_folder(find_paths().log) / "hearth.log"
        head = f"{datetime.now(UTC).isoformat()} hearth {' '.join(sys.argv[1:2])}\n"
        with open_log(path) as file:
            file.write("".join((head, *_frames(error))).encode("utf-8", "replace"))
    except OSError as problem:
        return f"HEARTH_DEBUG=1 shows the details; no log could be written ({problem.strerror})."
    return f"This is a defect in Hearth. The details are in {path}. {_ISSUES}"


def _frames(error: BaseException | None) -> list[str]:
    """The tracebacks of `error` and of its causes, without their messages, which may contain text
    of the user.
    """
    if error is None:
        return []
    lines = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    cause = error.__cause__ or error.__context__
    return [*_frames(cause), *lines, f"{type(error).__name__}\n"]
