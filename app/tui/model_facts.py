"""Facts about a model before it is loaded, and a larger model that suits this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hearth.app import format as words
from hearth.app.tui.services import Services

if TYPE_CHECKING:
    from hearth.app.library.local import FoundModel, LocalModel

_USUAL_BYTES_PER_S: Final = 20e9
"""Assumed memory bandwidth for the speed class, if this machine's was not measured."""
_FAST_TOK_PER_S: Final = 20.0
_SLOW_TOK_PER_S: Final = 6.0
"""About reading speed."""
_LARGER: Final = 1.5
_MUCH_LARGER: Final = 3.0
"""With `_LARGER`, the limits of a larger model's size, as multiples of the model's own."""
_SMALL_DOWNLOAD_BYTES: Final = 5e9


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model, which need not be loaded.

    Attributes:
        context: context length in tokens, limited by the settings; 0 if unknown.
        speed: fast, moderate or slow, estimated from the bytes read per token; empty if unknown.
        larger: how to get a larger model; empty if none suits.
    """

    model: LocalModel
    context: int
    speed: str
    larger: str

    @property
    def line(self) -> str:
        """Name, type, size and speed."""
        model = self.model
        size = words.size(model.size_bytes) if model.size_bytes else ""
        speed = f"{self.speed} on this machine" if self.speed else ""
        where = f"at {model.url}" if model.url else ""
        return " · ".join(filter(None, (model.name, model.file_type, size, speed, where)))


async def facts_of(services: Services, name: str) -> ModelFacts:
    """The facts of the model `name`. Raises `HearthError` as `LibraryIndex.resolve` does."""
    model = await services.index.resolve(name)
    installed = await services.index.models()
    return await asyncio.to_thread(_read, services, model, installed)


def _read(services: Services, found: FoundModel, installed: Sequence[FoundModel]) -> ModelFacts:
    # Imported when the first model is looked up, which is after the first paint.
    from hearth.app.library.bandwidth import known_bandwidth
    from hearth.app.library.facts import KnownFacts
    from hearth.app.library.local import describe
    from hearth.app.machine import this_machine

    facts = KnownFacts(services.paths.facts_file)
    model = describe(found, facts)
    facts.keep()
    measured = known_bandwidth(services.paths.cache, this_machine())
    bytes_per_s = measured.bytes_per_s if measured is not None else _USUAL_BYTES_PER_S
    asked = services.settings.for_model(found.name).load.context
    context = min(filter(None, (asked, model.context)), default=0)
    speed = _speed_class(bytes_per_s / model.size_bytes) if model.size_bytes else ""
    is_guide = model.name == "guide"
    here = [one.name for one in installed if one.origin != "bundled"] if is_guide else []
    if here:
        return ModelFacts(model, context, speed, f"F3 opens another model: {' or '.join(here[:3])}")
    suggested = ["SmolLM2 135M, 93 MB (hearth pull smollm2)"] if is_guide else []
    if larger := _larger(services, model, installed, bytes_per_s):
        suggested.append(larger)
    larger = f"F3 gets a larger one: {' or '.join(suggested)}" if suggested else ""
    return ModelFacts(model, context, speed, larger)


def _speed_class(tok_per_s: float) -> str:
    if tok_per_s >= _FAST_TOK_PER_S:
        return "fast"
    return "slow" if tok_per_s < _SLOW_TOK_PER_S else "moderate"


def _larger(
    services: Services, model: LocalModel, installed: Sequence[FoundModel], bytes_per_s: float
) -> str:
    """The largest chat model of the catalogue that fits, is not slow, and is not installed."""
    from hearth.app.library.cache_layout import hub_cache
    from hearth.app.library.catalogue import load_catalogue
    from hearth.app.library.menu import fit_of_entry, room_for

    room = room_for(hub_cache(), services.paths.cache)
    most_bytes = max(_SMALL_DOWNLOAD_BYTES, _MUCH_LARGER * model.size_bytes)
    repos = {other.repo.lower() for other in installed}
    for entry in sorted(load_catalogue().entries, key=lambda one: -one.parameters):
        read_bytes = entry.size_bytes * entry.active_parameters / entry.parameters
        if (
            entry.purpose == "chat"
            and _LARGER * model.size_bytes < entry.size_bytes < most_bytes
            and entry.repo.lower() not in repos
            and bytes_per_s / read_bytes >= _SLOW_TOK_PER_S
        ):
            fit = fit_of_entry(entry, services.settings, room)
            if fit.state == "fits" and fit.is_usable:
                return f"{entry.title}, {words.size(entry.size_bytes)}, fits"
    return ""
