"""Entry point of `python -P -m hearth.backends.worker`."""

from __future__ import annotations

import sys

from hearth.backends.machine.process import die_with_parent, take_private_pipes

if __name__ == "__main__":
    # Before anything else is imported: anything printed must go to the log, and this process must
    # end when its parent does.
    die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
    pipes = take_private_pipes()
    from hearth.backends.worker.worker import main

    main(*pipes)
