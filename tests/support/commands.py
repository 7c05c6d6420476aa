"""`hearth` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

HEARTH = (sys.executable, "-m", "hearth.app.cli.main")


def hearth(
    environ: Mapping[str, str], *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with these variables and no others."""
    return subprocess.run(
        [*HEARTH, *arguments],
        env=environ,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
