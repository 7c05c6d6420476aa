"""Shared by the client scripts: named steps, and the server's address.

A script prints `step ok NAME` or `step failed NAME` for each step; `run.py` reads those lines.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

ROOT = os.environ["HEARTH_URL"]
"""The server's address, without a path."""
API = f"{ROOT}/v1"
KEY = "none"
MODEL = os.environ["HEARTH_CLIENT_MODEL"]
"""Name of a trained model."""
CALLER = os.environ["HEARTH_CLIENT_CALLER"]
"""Name of a scripted model: it calls `get_weather`, and answers `ANSWER` after the result
`WEATHER`.
"""
CITY = "Lisbon"
WEATHER = "sunny, 31 degrees"
ANSWER = "It is sunny there."

_failed: list[str] = []


def step(name: str) -> Callable[[Callable[[], object]], None]:
    """Run the decorated function at once and report its outcome under `name`."""

    def run(body: Callable[[], object]) -> None:
        try:
            body()
        except Exception:  # noqa: BLE001 - reported; the steps after it still run
            _failed.append(name)
            traceback.print_exc()
            print(f"step failed {name}", flush=True)
        else:
            print(f"step ok {name}", flush=True)

    return run


def finish() -> None:
    """End the script: exit code 1 if a step failed."""
    sys.exit(1 if _failed else 0)
