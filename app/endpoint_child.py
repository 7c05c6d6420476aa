"""The process of an endpoint that belongs to the terminal app: `hearth serve` that ends with it.

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
    """When stdin ends, the process that wanted the endpoint is gone: end at once."""
    sys.stdin.buffer.read()
    for _ in range(2):  # The first signal would wait for the requests under way.
        os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Run `hearth` with `arguments`; returns its exit code."""
    from hearth.app.cli.main import main as hearth

    threading.Thread(target=_end_when_abandoned, name="abandoned", daemon=True).start()
    return hearth(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
