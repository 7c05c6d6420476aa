"""What a command holds: its output, and paths, settings and library read when first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import click

from hearth.app.cli.output import Output

if TYPE_CHECKING:
    from hearth.app.host_link import HostLink
    from hearth.app.library.local import FoundModel, Library
    from hearth.app.paths import Paths
    from hearth.app.settings import Layer, ModelUse, Settings
    from hearth.backends.contract import ModelSpec


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model that a command works with, and the settings that hold for it."""

    found: FoundModel
    use: ModelUse
    spec: ModelSpec


class State:
    """One invocation of `hearth`; `ctx.obj` of every command."""

    def __init__(self, *, offline: bool = False) -> None:
        self.output = Output()
        self._offline = offline

    def go_offline(self) -> None:
        """`--offline` was typed after the command's name."""
        self._offline = True

    @cached_property
    def paths(self) -> Paths:
        """Where everything lies."""
        from hearth.app.paths import find_paths

        return find_paths()

    @cached_property
    def settings(self) -> Settings:
        """File and environment, and the flags of `hearth` itself. Raises `SettingsError`."""
        from hearth.app.settings import Setting, load_settings

        settings = load_settings(self.paths.settings_file)
        return (
            settings.with_flags({"offline": Setting(True, "--offline")})
            if self._offline
            else settings
        )

    @cached_property
    def library(self) -> Library:
        """The models on this machine."""
        from hearth.app.library.local import Library

        return Library(self.paths.models)

    def choose(self, model: str, flags: Layer) -> Chosen:
        """The model called `model` (the default one if empty) with its settings.

        Raises:
            ModelNotFound, UnsupportedModel, CorruptFile: as `Library.resolve`.
            SettingsError: the settings cannot be used.
        """
        from hearth.backends.contract import ModelSpec

        found = self.library.resolve(model or self.settings.text("model"))
        use = self.settings.with_flags(flags).for_model(found.name)
        return Chosen(found, use, ModelSpec(str(found.path), found.name, use.backend, use.load))

    def link(self) -> HostLink:
        """A link to the host, which is started if need be; use it in a `with` block."""
        from hearth.app.host_link import HostLink

        return HostLink(self.paths.host_place(), self.settings.host_idle_s)


pass_state = click.make_pass_decorator(State)
