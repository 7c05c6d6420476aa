"""The models that can be pulled from one repository, and whether each fits this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from hearth.app.library.bandwidth import Bandwidth, known_bandwidth
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.catalogue import Catalogue, Entry
from hearth.app.library.fit import (
    Fit,
    Room,
    facts_of,
    fit_of_download,
    fit_of_folder,
    fit_of_header,
    room_here,
)
from hearth.app.library.hub import Download, Repository
from hearth.app.library.hub_files import (
    Choice,
    Group,
    Offer,
    Reference,
    best_choice,
    find_choice,
    offer,
    parse_reference,
)
from hearth.app.machine import this_machine
from hearth.app.paths import find_paths
from hearth.app.settings import Settings
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class Menu:
    """The models that can be pulled from one repository.

    Attributes:
        fits: how each choice fits this machine, by name.
        recommended: the name of the default choice.
    """

    repository: Repository
    offer: Offer
    fits: Mapping[str, Fit]
    recommended: str

    @property
    def choices(self) -> Sequence[Choice]:
        """The choices by group, the smallest first."""
        groups = get_args(Group)
        return sorted(self.offer.choices, key=lambda choice: groups.index(choice.group))

    def choice(self, wanted: str) -> Choice:
        """The choice called `wanted`. Raises `ChoiceNotFound`."""
        return find_choice(self.offer, self.repository.repo_id, wanted)

    def download(self, choice: Choice) -> Download:
        """The files of `choice`, at the commit that was looked up."""
        repository = self.repository
        return Download(repository.repo_id, repository.revision, repository.commit, choice.files)


def reference_of(name: str, catalogue: Catalogue) -> tuple[Reference, Entry | None]:
    """The repository that `name` refers to, and the catalogue's entry if it has one.

    `name` is `NAME` of the catalogue or `org/name`, optionally with `:QUANT`.

    Raises:
        ModelNotFound: `name` is not the name of a repository, and not in the catalogue.
    """
    base, colon, quant = name.partition(":")
    entry = catalogue.get(base)
    if entry is not None:
        return parse_reference(f"{entry.repo}{colon}{quant}"), entry
    if "/" not in name:
        raise catalogue.not_found(base)
    return parse_reference(name), None


def room_for(hub_cache: Path, cache: Path, measured: Bandwidth | None = None) -> Room:
    """The resources of this machine that are free now for models from the Hub.

    Args:
        hub_cache: folder for downloads.
        cache: folder of the measured bandwidth.
        measured: bandwidth to use if none is stored.
    """
    machine = this_machine()
    return room_here(hub_cache, known_bandwidth(cache, machine) or measured, machine)


def make_menu(
    repository: Repository, settings: Settings, room: Room, hub_cache: Path, entry: Entry | None
) -> Menu:
    """The models that `repository` offers, and how they fit this machine with the settings.

    Args:
        hub_cache: folder for downloads; files that it contains already take no more space.
        entry: entry of the catalogue, if the repository was named by it; its recommendation is
            used if it fits.

    Raises:
        RefusedRepository: it offers no model.
        SettingsError, InvalidParameter: the settings cannot be used.
    """
    from hearth.app.library.package_model import SMOLLM2

    load = _load(settings, repository.repo_id)
    is_here = repository.repo_id == SMOLLM2.repo and SMOLLM2.is_here(find_paths().models)
    cache = RepositoryCache(hub_cache, repository.repo_id)
    offered = offer(repository)
    fits = {}
    for choice in offered.choices:
        lacking = [file for file in choice.files if not (is_here or cache.blob(file.etag).exists())]
        fit = fit_of_download(facts_of(choice.size_bytes, entry, repository), load, room)
        fits[choice.name] = replace(fit, download_bytes=sum(file.size_bytes for file in lacking))
    recommended = best_choice(offered.choices, lambda choice: fits[choice.name].is_usable).name
    if entry is not None and entry.recommended in fits and fits[entry.recommended].is_usable:
        recommended = entry.recommended
    return Menu(repository, offered, fits, recommended)


def fit_of_entry(entry: Entry, settings: Settings, room: Room) -> Fit:
    """Whether the recommended file of a catalogue's entry fits this machine, approximately.

    Raises:
        SettingsError, InvalidParameter: the settings cannot be used.
    """
    facts = facts_of(entry.size_bytes, entry)
    return fit_of_download(facts, _load(settings, entry.repo), room)


def fit_of_file(path: Path, name: str, settings: Settings, room: Room) -> Fit:
    """Whether the model at `path`, a GGUF file or a folder of safetensors, fits this machine.

    Raises:
        ModelNotFound: the file does not exist any more, or may not be read.
        CorruptFile, UnsupportedModel: the model cannot be read.
        SettingsError, InvalidParameter: the settings cannot be used.
    """
    from hearth.backends.native.model_folder import read_model_folder
    from hearth.quant.gguf import preflight

    load = _load(settings, name)
    try:
        if path.is_dir():
            return fit_of_folder(read_model_folder(path), load, room)
        return fit_of_header(preflight.check(path), load, room)
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}."
        raise ModelNotFound(why, "Refresh the list of models.") from error


def _load(settings: Settings, name: str) -> ModelSettings:
    """The settings for loading a model, without KV budget, so that misfits are only reported."""
    return replace(settings.for_model(name).load, kv_budget_bytes=None)
