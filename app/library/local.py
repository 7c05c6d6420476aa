"""The local library: `LocalModel`, and `Library` that lists and finds them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hearth.app.library.formats import PICKLE_SUFFIXES, require_gguf
from hearth.app.nearest import nearest
from hearth.backends.errors import HearthError, ModelNotFound
from hearth.backends.remote.server import RemoteServer

BUNDLED = ("guide", "guide-draft")
Origin = Literal["bundled", "library", "path", "remote"]
_SUFFIX = ".gguf"
MODEL_SUFFIXES = (_SUFFIX, ".safetensors", *PICKLE_SUFFIXES)
_PART = re.compile(r"-(\d{5})-of-\d{5}(?=\.gguf$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file on this machine; what was read from its header, or why it could not be. Of a
    remote model, which is not asked, only where it is.
    """

    name: str
    path: Path
    origin: Origin
    size_bytes: int
    file_type: str = ""
    architecture: str = ""
    parameters: int = 0
    context: int = 0
    error: str = ""
    url: str = ""
    """Of a remote model."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Which file, or which model of another machine, a name or path stands for."""

    name: str
    path: Path
    """Of a remote model its URL, which is no file."""
    origin: Origin
    remote: RemoteServer | None = None


class Library:
    """The bundled models, the remote ones, and the GGUF files in one folder and its subfolders.

    Args:
        folder: the library folder; need not exist.
        bundled: folder of the bundled models; by default the installed one.
        remotes: models of other machines.
        aliases: names of models by further names for them, in lower case.
    """

    def __init__(
        self,
        folder: Path,
        bundled: Path | None = None,
        remotes: Iterable[RemoteServer] = (),
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._bundled = bundled or bundled_folder()
        self._remotes = tuple(remotes)
        self._aliases = aliases or {}

    def found(self) -> list[FoundModel]:
        """Every model by name, bundled ones first, then remote ones, without opening a file or a
        connection.

        A name is that of the file without suffix; where two would have the same, it begins with the
        folder, and where that is not enough, it is the file's own with its suffix.
        """
        models = [
            FoundModel(name, path, "bundled")
            for name in BUNDLED
            if (path := self._bundled / f"{name}.f16.gguf").is_file()
        ]
        models += [
            FoundModel(remote.name, Path(remote.url, "models", remote.name), "remote", remote)
            for remote in self._remotes
        ]
        paths = sorted(self._files(), key=lambda path: (_stem(path).lower(), path))
        stems = Counter(_stem(path).lower() for path in paths)
        stems.update((*BUNDLED, *(remote.name.lower() for remote in self._remotes)))
        for path in paths:
            name = _stem(path)
            if stems[name.lower()] > 1:
                name = (path.parent.relative_to(self.folder) / name).as_posix()
            if any(model.name.lower() == name.lower() for model in models):
                name = path.relative_to(self.folder).as_posix()
            models.append(FoundModel(name, path, "library"))
        return models

    def _files(self) -> list[Path]:
        """The GGUF files; of a split model its first."""
        found = []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                part = _PART.search(name)
                if name.lower().endswith(_SUFFIX) and (part is None or int(part[1]) == 1):
                    found.append(Path(folder, name))
        return found

    def list(self) -> Sequence[LocalModel]:
        """Every model with the facts of its header; one whose header is bad carries its error."""
        return [describe(model) for model in self.found()]

    def resolve(self, name_or_path: str) -> FoundModel:
        """The model behind `name_or_path`: a bundled or remote name, a name in the library, an
        alias, or a path.

        Names are compared without regard to case. A bundled or remote name wins over a library
        name, that over an alias, that over a path without a folder or suffix in it.

        Raises:
            ModelNotFound: with the nearest names and how to add one; also when two models go by
                that name.
            UnsupportedModel, CorruptFile: a path to something that is no GGUF file.
        """
        if _looks_like_path(name_or_path):
            return _at(Path(name_or_path).expanduser())
        models = self.found()
        typed = name_or_path.lower()
        wanted = typed.removesuffix(_SUFFIX)
        for name in (typed, wanted, self._aliases.get(typed, "").lower()):
            for model in models:
                if model.name.lower() == name:
                    if model.remote is None:
                        require_gguf(model.path)
                    return model
        files = [model for model in models if model.remote is None]
        same = [model.name for model in files if _stem(model.path).lower() == wanted]
        if same:
            raise ModelNotFound(
                f"{len(same)} models go by the name {name_or_path}.",
                f"Say which: {', '.join(same)}.",
                names=same,
            )
        path = Path(name_or_path).expanduser()
        if path.exists():
            return _at(path)
        raise self._not_found(name_or_path, [model.name for model in models])

    def _not_found(self, name: str, names: Sequence[str]) -> HearthError:
        if name.lower() in BUNDLED:
            return ModelNotFound(
                f"The bundled model {name} is missing from {self._bundled}.",
                "The installation is incomplete: install Hearth again.",
            )
        near = nearest(name, names, most=3)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        return ModelNotFound(
            f'There is no model "{name}".',
            f"{guess}`hearth list` shows the models that are here. To add one, put its .gguf file "
            "into "
            f"{self.folder}, or give its path: hearth run ./model.gguf.",
            name=name,
            nearest=near,
        )


def bundled_folder() -> Path:
    """The folder of the models that come with Hearth."""
    from importlib.resources import files

    return Path(str(files("hearth.assets"))) / "guide"


def describe(model: FoundModel) -> LocalModel:
    """`model` with its size and what its header says, or in `error` why that cannot be read."""
    from hearth.quant.gguf import preflight

    if model.remote is not None:
        return LocalModel(model.name, model.path, model.origin, 0, url=model.remote.url)
    try:
        size_bytes = model.path.stat().st_size
        header = preflight.check(model.path)
    except OSError as error:
        return LocalModel(
            model.name, model.path, model.origin, 0, error=error.strerror or str(error)
        )
    except HearthError as error:
        return LocalModel(model.name, model.path, model.origin, size_bytes, error=error.message)
    return LocalModel(
        model.name,
        model.path,
        model.origin,
        sum(part.size_bytes for part in (header, *header.shards)),
        file_type=header.file_type_name,
        architecture=header.architecture,
        parameters=header.parameter_count,
        context=header.context_length,
    )


def _looks_like_path(text: str) -> bool:
    """`text` can only mean a file: it is rooted, or ends as model files do and has a folder."""
    path = Path(text)
    if text.startswith(("~", ".")) or path.is_absolute() or "\\" in text:
        return True
    return path.suffix.lower() in MODEL_SUFFIXES and (len(path.parts) > 1 or path.exists())


def _stem(path: Path) -> str:
    """The name of a model file without suffix and part number."""
    return _PART.sub("", path.name)[: -len(_SUFFIX)]


def _at(path: Path) -> FoundModel:
    require_gguf(path)
    name = _PART.sub("", path.name)
    return FoundModel(name.removesuffix(Path(name).suffix), path.absolute(), "path")
