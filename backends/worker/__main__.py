"""Entry of `python -P -m hearth.backends.worker`."""

from __future__ import annotations

import sys

from hearth.backends.machine.process import die_with_parent, take_private_pipes

if __name__ == "__main__":
    # Before anything else is imported: what prints must find the log, and what ends the parent must
    # end this process too.
    die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
    pipes = take_private_pipes()
    from hearth.backends.worker.worker import main

    main(*pipes)
