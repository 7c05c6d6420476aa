"""What open chats work with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hearth.app.chats.store import ChatStore
from hearth.app.chosen import Chosen, with_settings
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import Library
from hearth.app.paths import Paths
from hearth.app.settings import Settings, layer_of

if TYPE_CHECKING:
    from hearth.app.host_connection import HostConnection
    from hearth.backends.contract import Backend, ModelInfo


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is loaded, with the settings that hold for it."""

    chosen: Chosen
    backend: Backend
    info: ModelInfo


@dataclass(slots=True)
class ChatServices:
    """Everything behind the open chats.

    Attributes:
        settings: file, environment and flags.
        shown_notices: notices of models, by their paths, that were shown already.
        index: the names of the library's models, for lookups on the event loop.
    """

    paths: Paths
    settings: Settings
    library: Library
    chats: ChatStore
    host: HostConnection
    shown_notices: set[tuple[str, str]] = field(default_factory=set, kw_only=True)
    index: LibraryIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = LibraryIndex(self.library)

    async def choose(self, model: str, changes: Mapping[str, Any]) -> Chosen:
        """The model called `model` (the default one if empty) with the settings that hold for it.

        Args:
            changes: values of settings by name, which a chat has of its own.

        Raises:
            HearthError: as `LibraryIndex.resolve`.
            SettingsError: a change is out of range, or the settings cannot be used.
        """
        settings = self.settings.with_flags(layer_of(changes, "this chat"))
        found = await self.index.resolve(model or settings.text("model"))
        # A template file is read for it.
        return await asyncio.to_thread(with_settings, found, settings)

    async def load(self, model: str, changes: Mapping[str, Any]) -> Loaded:
        """As `choose`, and the model is loaded. Raises HearthError."""
        chosen = await self.choose(model, changes)
        backend = await self.host.backend(chosen.spec)
        return Loaded(chosen, backend, await backend.info())
