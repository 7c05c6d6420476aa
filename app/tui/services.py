"""The services that the terminal app uses; tests replace them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hearth.app.library.downloads import Downloads
from hearth.app.library.hub import Hub
from hearth.app.session.sessions import ChatServices
from hearth.app.settings import Settings

if TYPE_CHECKING:
    from hearth.app.library.bandwidth import Bandwidth


@dataclass(slots=True)
class Services(ChatServices):
    """Everything behind the screens.

    Attributes:
        hub: where models are found.
        downloads: the download queue.
        reload: reads the settings again. Raises `SettingsError`.
        measure_bandwidth: measures this machine's memory bandwidth and saves it; None if it is not
            measured.
    """

    hub: Hub
    downloads: Downloads
    reload: Callable[[], Settings]
    measure_bandwidth: Callable[[], Awaitable[Bandwidth]] | None = None

    def use_settings(self) -> None:
        """Read the settings again, and use them from now on. Raises `SettingsError`."""
        self.settings = self.reload()
        if self.hub.offline != self.settings.offline:
            self.hub = replace(self.hub, offline=self.settings.offline)
            self.downloads.use(self.hub)
