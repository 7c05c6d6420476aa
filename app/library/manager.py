"""Lets programs download, delete and copy models by name, from an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.jobs.job import Job
from hearth.app.library import download_job
from hearth.app.library.adopt import adopt, plan_copy
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.catalogue import load_catalogue
from hearth.app.library.errors import ModelInUse
from hearth.app.library.hub import Download, Hub
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import LATEST, FoundModel
from hearth.app.library.menu import Menu, make_menu, reference_of, room_for
from hearth.app.library.removal import Removal, plan_removal, remove
from hearth.app.settings import Settings
from hearth.backends.errors import Busy, DoesNotFit, ModelNotFound

MOST_PULLS: Final = 2
"""Maximum number of simultaneous downloads; each has a process of its own."""
_RETRY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The progress of a download.

    Attributes:
        activity: "downloading", "checking", or "waiting" for another process with the same file.
        file: path of the present file in the repository.
        digest: checksum of the file: SHA-256 for weights, git's SHA-1 for small files.
        done_bytes, total_bytes: bytes of all files together.
    """

    activity: str
    file: str
    digest: str
    done_bytes: int
    total_bytes: int


class ModelManager:
    """The operations of programs on the models of a library.

    Args:
        index: scanned again after every change.
        settings: decide whether a model fits, and whether the network may be used.
        hub_cache: folder for downloads.
        cache: folder of the measured memory bandwidth.
        log_dir: folder for the logs of downloads; None: not logged.
    """

    def __init__(
        self,
        index: LibraryIndex,
        settings: Settings,
        hub_cache: Path,
        cache: Path,
        log_dir: Path | None = None,
    ) -> None:
        self._index = index
        self._settings = settings
        self._hub_cache = hub_cache
        self._cache = cache
        self._log_dir = log_dir
        self._hub = Hub(offline=settings.offline)
        self._pulls = asyncio.Semaphore(MOST_PULLS)

    async def pull(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Download the model that `name` refers to; ends at once if the library has it.

        It is a model of the catalogue, or a repository of the Hub (`org/name` or `org/name:QUANT`).
        Closing the generator stops the download; the bytes that arrived are kept for the next one.

        Raises:
            ModelNotFound: neither the catalogue nor the Hub has the model.
            Busy: `MOST_PULLS` downloads are running.
            DoesNotFit: the model would not fit this machine.
            OfflineError: the library lacks the model, and the network must not be used.
            HearthError: as `Hub.repository`, `hub_files.offer` and `Downloader.run`.
        """
        if await self._is_here(name):
            return
        if self._pulls.locked():
            raise Busy(
                f"{MOST_PULLS} models are being downloaded, which is the most at the same time.",
                "Retry when one of them is complete.",
                retry_after_s=_RETRY_S,
            )
        async with self._pulls:
            download = await asyncio.to_thread(self._look_up, name)
            if download is not None:
                async with aclosing(self._download(download)) as progress:
                    async for at in progress:
                        yield at
        await self._index.changed()

    async def delete(self, name: str, loaded: Collection[str]) -> Removal:
        """Delete the model called `name`, from the library folder or the Hugging Face cache.

        Args:
            loaded: paths of the models that are loaded.

        Returns: what was deleted.

        Raises:
            ModelNotFound: no model has that name.
            ModelInUse: the model is loaded.
            NotRemovable: the model is bundled, remote or another program's, or cannot be deleted.
        """
        model = await self._find(name)
        removal = await asyncio.to_thread(self._remove, model, loaded)
        await self._index.changed()
        return removal

    async def copy(self, name: str, new_name: str) -> Path:
        """Copy the model called `name` into the library folder as `new_name`.

        Returns the path of the copy. Nothing is overwritten.

        Raises:
            ModelNotFound: no model is called `name`.
            HearthError: as `plan_copy` and `adopt`.
        """
        model = await self._find(name)
        library = self._index.library
        path = await asyncio.to_thread(lambda: adopt(plan_copy(model, library, new_name)))
        await self._index.changed()
        return path

    async def _find(self, name: str) -> FoundModel:
        model = await self._index.find(name)
        if model is None:
            raise ModelNotFound(f'There is no model "{name[:100]}".', "`hearth list` shows them.")
        return model

    def _remove(self, model: FoundModel, loaded: Collection[str]) -> Removal:
        if os.path.realpath(model.path) in {os.path.realpath(path) for path in loaded}:
            raise ModelInUse(
                f"{model.name} is loaded.",
                "Unload it first (`hearth stop`, or keep_alive 0), then delete it.",
                name=model.name,
            )
        removal = plan_removal(model, self._index.library)
        remove(removal)
        return removal

    async def _is_here(self, name: str) -> bool:
        try:
            return await self._index.find(name) is not None
        except ModelNotFound:  # More than one model has that name.
            return True

    def _look_up(self, name: str) -> Download | None:
        """The files to download for `name`; None if all are in the cache. Connects to the Hub."""
        reference, entry = reference_of(name.removesuffix(LATEST), load_catalogue())
        repository = self._hub.repository(reference.repo_id, reference.revision)
        room = room_for(self._hub_cache, self._cache)
        menu = make_menu(repository, self._settings, room, self._hub_cache, entry)
        choice = menu.choice(reference.choice or menu.recommended)
        place = RepositoryCache(self._hub_cache, repository.repo_id)
        if all(place.is_there(repository.commit, file.path) for file in choice.files):
            return None
        _require_fit(menu, choice.name)
        return menu.download(choice)

    async def _download(self, download: Download) -> AsyncGenerator[PullProgress, None]:
        digests = {file.path: file.etag for file in download.files}
        question = download_job.question(download, self._hub_cache, hub=self._hub)
        job = await Job.start(download_job.work, question, self._log_dir)
        try:
            async for values in job.updates():
                yield PullProgress(
                    values["state"],
                    values["file"],
                    digests[values["file"]],
                    values["done_bytes"],
                    values["total_bytes"],
                )
            await job.result()
        finally:
            await job.close()


def _require_fit(menu: Menu, choice: str) -> None:
    """Raises `DoesNotFit` unless this machine can use `choice`."""
    fit = menu.fits[choice]
    if not fit.is_usable:
        raise DoesNotFit(
            f"{choice} of {menu.repository.repo_id} does not fit this machine: {fit.words}.",
            f"{menu.recommended} is recommended; `hearth pull` can download this one all the same.",
            **fit.to_json(),
        )
