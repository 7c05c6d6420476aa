"""The models that requests may name: the library's, and the one that `hearth serve` opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hearth.app.chosen import Chosen
from hearth.app.library.local import FoundModel, Library
from hearth.backends.errors import InvalidParameter, ModelNotFound


class Catalog:
    """Finds a model by name. A request's text is looked up here and never becomes part of a path.

    Args:
        library: read anew when a name is unknown, so that a model added meanwhile is found.
        default: the model that was opened, which may lie outside of the library.
        settings: a model with the settings that hold for it.
        aliases: names of models by further names for them, in lower case; a model's own name wins.
    """

    def __init__(
        self,
        library: Library,
        default: FoundModel,
        settings: Callable[[FoundModel], Chosen],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._library = library
        self.default = default
        self._settings = settings
        self._aliases = aliases or {}
        self._known: dict[str, Chosen] = {}

    def found(self) -> Sequence[FoundModel]:
        """Every model, the opened one first."""
        others = (model for model in self._library.found() if model.path != self.default.path)
        return (self.default, *others)

    def find(self, name: object) -> Chosen:
        """The model called `name`, in any case of letters, or the one that it is an alias of.

        Raises:
            InvalidParameter: `name` is missing or no text.
            ModelNotFound: no model is called so.
            SettingsError: the model's template file cannot be read.
        """
        if not isinstance(name, str) or not name:
            raise InvalidParameter(
                "model",
                "model must be the name of a model.",
                "GET /v1/models lists the names.",
            )
        key = name.lower()
        if key not in self._known:
            self._known[key] = self._settings(self._look_up(name))
        return self._known[key]

    def _look_up(self, name: str) -> FoundModel:
        for wanted in (name, self._aliases.get(name.lower(), "")):
            for model in self.found():
                if model.name.lower() == wanted.lower():
                    return model
        raise ModelNotFound(
            f'There is no model "{name[:100]}".', "GET /v1/models lists the names.", param="model"
        )
