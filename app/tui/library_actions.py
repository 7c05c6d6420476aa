"""What a person can do with a model in the library: chat, delete, import, pull."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from hearth.app import format as words
from hearth.app.library.adopt import Adoption, Way, adopt, plan_adoption
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Entry
from hearth.app.library.download import Download
from hearth.app.library.hub_files import Choice, Reference
from hearth.app.library.local import LocalModel
from hearth.app.library.menu import Menu, make_menu, room_for
from hearth.app.library.removal import plan_removal, remove
from hearth.app.tui.screens.dialogs import AskLine, Confirm, PickOne
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.typed_path import typed_path
from hearth.backends.errors import InternalError

if TYPE_CHECKING:
    from hearth.app.tui.screens.library import LibraryScreen

_WAYS: Final[dict[str, Way]] = {"Copy it": "copy", "Move it": "move", "Link to it": "link"}


class LibraryActions:
    """The actions of one library screen, to be awaited by a worker of it. Each raises `HearthError`
    with what to do next.
    """

    def __init__(self, screen: LibraryScreen) -> None:
        self._screen = screen
        self.bandwidth: Bandwidth | None = None
        """What was measured for this screen, which is not kept where other programs were busy."""
        self._has_timed = False

    async def chat(self, model: LocalModel) -> None:
        """Begin a chat with `model`."""
        screen = self._screen
        session = await screen.sessions.create(model=model.name)
        screen.hearth.wanted_thread = session.thread.id
        screen.hearth.action_go("chat")

    async def loaded(self) -> set[str]:
        """The paths of the models that are loaded."""
        stats = await self._screen.services.host.stats()
        return {worker.path for worker in stats.workers} if stats is not None else set()

    async def time_memory(self) -> bool:
        """Measure how fast memory is read, if nobody has; True if that is known only now. Not while
        a model answers: both would be slow.

        Raises:
            HearthError: it could not be measured; it is not tried again.
        """
        services = self._screen.services
        if services.measure_bandwidth is None or self._has_timed:
            return False
        room = await asyncio.to_thread(room_for, hub_cache(), services.paths.cache)
        stats = await services.host.stats()
        is_busy = stats is not None and any(worker.running for worker in stats.workers)
        if room.bandwidth is not None or is_busy:
            return False
        self._has_timed = True
        try:
            self.bandwidth = await services.measure_bandwidth()
        except OSError as error:
            raise InternalError(
                f"How fast memory is read could not be measured: {error}.",
                "`hearth fit` measures it too; `hearth doctor` looks at the folders.",
            ) from error
        return True

    async def unload(self, model: LocalModel) -> None:
        """Take `model` out of memory."""
        count = await self._screen.services.host.unload(str(model.path))
        said = "is unloaded" if count else "was not loaded"
        self._screen.tell(f"{model.name} {said}.")

    async def remove(self, model: LocalModel) -> None:
        """Delete `model`, after saying what that frees."""
        screen = self._screen
        library = screen.services.library
        found = await asyncio.to_thread(library.resolve, model.name)
        removal = await asyncio.to_thread(plan_removal, found, library)
        is_loaded = str(found.path) in await self.loaded()
        details = [*map(str, removal.paths), *removal.keeps]
        if is_loaded:
            details.append("It is loaded now and is unloaded first, which ends what it says.")
        freed = words.size(removal.frees_bytes)
        question = f"Delete {model.name}? It frees {freed}."
        if not await screen.app.push_screen_wait(
            Confirm(question, "\n".join(details), yes="Delete it", no="Keep it")
        ):
            return
        if is_loaded:
            await screen.services.host.unload(str(found.path))
        await asyncio.to_thread(remove, removal)
        await screen.services.index.changed()
        screen.tell(f"{model.name} is deleted; {freed} are free again.")

    async def import_file(self) -> None:
        """Take a model file that the user names into the library."""
        screen = self._screen
        library = screen.services.library
        typed = await screen.app.push_screen_wait(
            AskLine("Import a model", placeholder="a GGUF file, or a folder with a model")
        )
        if not typed:
            return
        path = typed_path(typed)
        plan = await asyncio.to_thread(plan_adoption, path, library, "link")
        details = {
            "Copy it": f"{words.size(plan.size_bytes)} more on the disk",
            "Move it": "nothing stays where it was",
            "Link to it": "it stays where it is, and must",
        }
        way = await screen.app.push_screen_wait(
            PickOne(f"Import {plan.name}", list(_WAYS), details=details)
        )
        if way is None:
            return
        plan = await asyncio.to_thread(plan_adoption, path, library, _WAYS[way])
        await asyncio.to_thread(adopt, plan, lambda done: self._copied(plan, done))
        await screen.services.index.changed()
        screen.tell(f"{plan.name} is in the library.")

    def _copied(self, plan: Adoption, done: int) -> None:
        """So much was copied; called by the thread that does it."""
        text = f"Importing {plan.name}: {words.size(done)} of {words.size(plan.size_bytes)}"
        self._screen.app.call_from_thread(self._screen.say, text)

    async def pull(self, reference: Reference, entry: Entry | None = None) -> bool:
        """Let the user choose a file of the repository, and download it; False: none was chosen.

        Args:
            entry: of the catalogue, if it was named by that.
        """
        screen = self._screen
        screen.say(f"Asking the Hub for {reference.repo_id} …")
        try:
            menu = await asyncio.to_thread(self._menu, reference, entry)
        finally:
            screen.say("")
        endpoint = screen.services.hub.endpoint
        choice = await screen.app.push_screen_wait(PickFile(menu, endpoint, reference.choice))
        if choice is None or not await self._is_sure(menu, choice):
            return False
        found = menu.repository
        download = Download(found.repo_id, found.revision, found.commit, choice.files)
        await screen.services.downloads.add(download, f"{found.repo_id}:{choice.name}")
        return True

    def _menu(self, reference: Reference, entry: Entry | None) -> Menu:
        services = self._screen.services
        repository = services.hub.repository(reference.repo_id, reference.revision)
        room = room_for(hub_cache(), services.paths.cache, self.bandwidth)
        return make_menu(repository, services.settings, room, hub_cache(), entry)

    async def _is_sure(self, menu: Menu, choice: Choice) -> bool:
        """What does not fit is downloaded only when somebody says so again."""
        fit = menu.fits[choice.name]
        if fit.is_usable:
            return True
        question = f"{choice.name} does not fit this machine. Download it anyway?"
        return cast("bool", await self._screen.app.push_screen_wait(Confirm(question, fit.words)))
