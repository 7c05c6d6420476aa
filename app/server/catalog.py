"""The models that requests may name: the library's, and the one that `hearth serve` opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hearth.app.chosen import Chosen
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import FoundModel, Library
from hearth.backends.errors import InvalidParameter, ModelNotFound

_HINT = "GET /v1/models lists the names."


class Catalog:
    """Finds a model by name, without a scan of the disk on the event loop. A name from a request
    never becomes part of a path.

    Args:
        library: its own names win over its aliases.
        default: the model that was opened, which may be outside of the library; its name wins.
        settings: a model with the settings that hold for it.

    Attributes:
        index: the names of `default` and of the library.
    """

    def __init__(
        self, library: Library, default: FoundModel, settings: Callable[[FoundModel], Chosen]
    ) -> None:
        self.default = default
        self.index = LibraryIndex(library, [default])
        self._settings = settings
        self._known: dict[FoundModel, Chosen] = {}

    async def models(self) -> Sequence[FoundModel]:
        """Every model, the opened one first. Raises `LibraryNotRead`."""
        return await self.index.models()

    async def find(self, name: object) -> Chosen:
        """The model called `name`, as `ModelNames.find` has it.

        Raises:
            InvalidParameter: `name` is missing or not a string.
            ModelNotFound: no model has that name, or several have.
            LibraryNotRead: the model folders have not been read yet.
            SettingsError: the model's template file cannot be read.
        """
        if not isinstance(name, str) or not name:
            raise InvalidParameter("model", "model must be the name of a model.", _HINT)
        model = await self._look_up(name)
        if model not in self._known:
            self._known[model] = await asyncio.to_thread(self._settings, model)
        return self._known[model]

    async def _look_up(self, name: str) -> FoundModel:
        try:
            model = await self.index.find(name)
        except ModelNotFound as error:
            raise ModelNotFound(error.message, error.hint, **error.data, param="model") from error
        if model is None:
            raise ModelNotFound(f'There is no model "{name[:100]}".', _HINT, param="model")
        return model
