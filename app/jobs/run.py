"""A job for a command: wait for it, and let Ctrl+C stop it well."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hearth.app.jobs.job import Job

Values = dict[str, Any]


def run_job(
    module: str,
    question: Values,
    on_progress: Callable[[Values], None],
    log_dir: Path | None = None,
) -> Values:
    """What the job answers; see `Job.start`.

    Args:
        on_progress: told what it tells.

    Raises:
        HearthError: what it ended with; after Ctrl+C `child.Stopped`.
    """
    return asyncio.run(_run(module, question, on_progress, log_dir))


async def _run(
    module: str, question: Values, on_progress: Callable[[Values], None], log_dir: Path | None
) -> Values:
    job = await Job.start(module, question, log_dir)
    loop = asyncio.get_running_loop()
    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGINT, job.stop)
    try:
        async for values in job.updates():
            on_progress(values)
        return await job.result()
    finally:
        await job.close()
