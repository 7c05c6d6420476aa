"""`hearth`: opens the chat app or runs a command, and reports errors with an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hearth.app.exit_codes import ExitCode
from hearth.app.terminal import can_draw, use_utf8


def _open_app() -> int:
    """Open the chat app without parsing a command line: importing click takes 8 ms."""
    from hearth.app.cli.state import State
    from hearth.app.tui.pace import quick_start

    with quick_start():
        from hearth.app.tui.open import open_app

        state = State()
        return open_app(state.paths, state.settings, state.library, "")


def _run(args: list[str]) -> int | None:
    """Run the command in `args`; returns its exit code."""
    from hearth.app.cli.commands import PROGRAM, cli

    code: int | None = cli.main(args, prog_name=PROGRAM, standalone_mode=False)
    sys.stdout.flush()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run `hearth` with `argv` (default: the arguments of the process); returns the exit code."""
    use_utf8()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(args) if args or not can_draw() else _open_app()
    except BrokenPipeError:
        # The reader is gone, and the interpreter flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except BaseException as error:  # noqa: BLE001 - report() decides
        from hearth.app.cli.report import report

        typed = args[: args.index("--")] if "--" in args else args
        return report(error, as_json="--json" in typed)
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
