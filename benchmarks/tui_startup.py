"""Start-up time of the terminal app: from its start until the prompt box is drawn.

    python benchmarks/tui_startup.py [--runs 7]

Warm means that the files of the program are in the page cache; cold, that the kernel was asked to
drop them before (which it may do only in part). The home is empty in each run, and no host is
started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import select
import signal
import site
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from startup import HEARTH, Measure, print_table, whole

PROMPT_BOX = b"essage, or /"
"""The placeholder of the prompt box, without the letter under the cursor."""
PATIENCE_S = 60.0


def first_paint() -> float:
    """Seconds from the start of `hearth` until its prompt box reaches the terminal."""
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        ours, theirs = pty.openpty()
        env = {**os.environ, "HEARTH_HOME": home, "COLUMNS": "120", "LINES": "40"}
        env["TERM"] = "xterm-256color"
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        began = time.perf_counter()
        with subprocess.Popen(
            HEARTH, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as process:
            os.close(theirs)
            try:
                drawn = b""
                while PROMPT_BOX not in drawn:
                    ready, _, _ = select.select([ours], [], [], PATIENCE_S)
                    assert ready, f"no prompt box came, but {drawn!r}"
                    drawn += os.read(ours, 65536)
                return time.perf_counter() - began
            finally:
                process.send_signal(signal.SIGKILL)
                os.close(ours)


def forget_files() -> None:
    """Ask the kernel to drop the program's files, and those it imports, from memory."""
    for file in _program_files():
        with contextlib.suppress(OSError), file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _program_files() -> Iterator[Path]:
    root = Path(__file__).resolve().parent.parent
    for folder in (
        root / "app",
        root / "backends",
        root / "quant",
        *map(Path, site.getsitepackages()),
    ):
        for name in ("*.py", "*.pyc", "*.so"):
            yield from folder.rglob(name)


def cold(measure: Callable[[], float]) -> float:
    """The result of `measure` after `forget_files`."""
    forget_files()
    return measure()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    first_paint()
    help_page = partial(whole, [*HEARTH, "--help"], os.environ)
    rows: list[Measure] = [
        ("hearth --help, warm, whole", help_page),
        ("hearth, warm, prompt box drawn", first_paint),
        ("hearth --help, cold, whole", lambda: cold(help_page)),
        ("hearth, cold, prompt box drawn", lambda: cold(first_paint)),
    ]
    print_table(rows, runs)


if __name__ == "__main__":
    main()
