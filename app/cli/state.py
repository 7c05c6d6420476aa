"""The state of a command: its output, and paths, settings and library, read on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from hearth.app.cli.output import Output

if TYPE_CHECKING:
    from hearth.app.chosen import Chosen
    from hearth.app.host_link import HostLink
    from hearth.app.library.local import FoundModel, Library
    from hearth.app.paths import Paths
    from hearth.app.settings import Layer, Settings
    from hearth.backends.errors import ModelNotFound


Offer = Callable[["State", str, "ModelNotFound"], bool]


class State:
    """One invocation of `hearth`; `ctx.obj` of every command.

    Args:
        offline: `--offline` was typed; it may also follow the name of the command.
        offer: offers to download a missing model by name; returns True if it was downloaded.
    """

    def __init__(self, *, offline: bool = False, offer: Offer | None = None) -> None:
        self.output = Output()
        self.offline = offline
        self._offer = offer

    @cached_property
    def paths(self) -> Paths:
        """The places of Hearth's files."""
        from hearth.app.paths import find_paths

        return find_paths()

    @cached_property
    def settings(self) -> Settings:
        """Settings of the file, the environment and the flags of `hearth` itself. Raises
        `SettingsError`.
        """
        from hearth.app.settings import Setting, load_settings

        flags = {"offline": Setting(True, "--offline")} if self.offline else {}
        return load_settings(self.paths.settings_file).with_flags(flags)

    @cached_property
    def library(self) -> Library:
        """The models on this machine, and the remote models that the settings name."""
        from hearth.app.chosen import library_of
        from hearth.app.settings import Settings
        from hearth.backends.errors import SettingsError

        try:
            settings = self.settings
        except SettingsError:  # Reported by the commands that need the settings.
            settings = Settings(self.paths.settings_file)
        return library_of(self.paths, settings)

    def choose(self, model: str, flags: Layer) -> Chosen:
        """The model called `model` (empty: the default model) with its settings.

        Raises:
            ModelNotFound, UnsupportedModel, CorruptFile: as `Library.resolve`.
            SettingsError: the settings cannot be used.
        """
        from hearth.app.chosen import with_settings

        return with_settings(self.find(model), self.settings.with_flags(flags))

    def find(self, model: str) -> FoundModel:
        """The model called `model` (empty: the default model). If it is missing and can be
        downloaded, the user is asked. Raises as `Library.resolve`.
        """
        from hearth.backends.errors import ModelNotFound

        name = model or self.settings.text("model")
        try:
            return self.library.resolve(name)
        except ModelNotFound as error:
            can_pull = "pull" in error.data and not self.settings.offline
            if not can_pull or self._offer is None or not self._offer(self, name, error):
                raise
        return self.library.resolve(name)

    def link(self) -> HostLink:
        """A link to the host, which is started if needed; use it in a `with` block."""
        from hearth.app.host_link import HostLink

        return HostLink(self.paths.host_place(), *self.settings.host_options)

    def running_host(self) -> HostLink:
        """A link for commands that only inspect the host, whose limits stay unchanged."""
        from hearth.app.host_link import HostLink

        return HostLink(self.paths.host_place(), self.settings.host_idle_s)
