"""The endpoint process of the terminal app: a `hearth serve` that ends with the app.

`python -m hearth.app.endpoint_child PARENT [OPTION...]`; the parent keeps its stdin open.
"""

from __future__ import annotations

import sys

from hearth.backends.machine.process import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))

import os
import signal
import threading
from collections.abc import Sequence


def _end_when_abandoned() -> None:
    """End at once when stdin ends, since the parent process is then gone."""
    while os.read(0, 4096):  # `sys.stdin` would stay locked, and Python abort when it exits.
        pass
    for _ in range(2):  # After one signal alone, it would wait for the running requests.
        os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Run `hearth` with `arguments`; returns its exit code."""
    from hearth.app.cli.main import main as hearth

    threading.Thread(target=_end_when_abandoned, name="abandoned", daemon=True).start()
    return hearth(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
