"""Downloads from the stand-in for the Hub, small enough for tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hearth.app.library.download import Downloader, Limits
from hearth.app.library.hub import Download, Hub
from hearth.app.machine import free_disk_bytes
from hub_server import HubServer, Repo

REPO = "organisation/model-GGUF"
SIZE = 1_200_000
MODEL = random.Random(5).randbytes(SIZE)
LIMITS = Limits(
    connections=3,
    range_bytes=160_000,
    sync_bytes=100_000,
    reserve_bytes=0,
    stall_s=20.0,
    tries=3,
    backoff_s=0.0,
)


class Watched:
    """Records the progress that a download reports."""

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.told: list[dict[str, Any]] = []
        self._on_progress = on_progress

    def progress(self, **values: Any) -> None:
        self.told.append(values)
        if self._on_progress is not None:
            self._on_progress(values)


def put(hub: HubServer, files: dict[str, bytes] | None = None, **facts: Any) -> Download:
    """Put a repository on the stand-in, and return the download of all of it."""
    hub.repos[REPO] = Repo(files or {"model.gguf": MODEL, "config.json": b'{"a": 1}\n'}, **facts)
    found = Hub().repository(REPO)
    return Download(REPO, "main", found.commit, found.files)


def fetch(
    download: Download,
    cache: Path,
    watched: Watched | None = None,
    limits: Limits = LIMITS,
    free: Callable[[Path], int] = free_disk_bytes,
) -> Path:
    """Run `download` in this process; returns the folder of its files."""
    watched = watched or Watched()
    downloader = Downloader(download, cache, Hub().endpoint, watched.progress, limits, free)
    return asyncio.run(downloader.run())
