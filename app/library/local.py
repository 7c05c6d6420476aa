"""The local library.

`Library` lists its models, `ModelNames` finds a model by name, `Aliases` are further names from the
settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from hearth.app.library.facts import KnownFacts
from hearth.app.library.model_files import (
    PICKLE_SUFFIXES,
    SUFFIX,
    WEIGHTS,
    has_quant,
    identity,
    model_at,
    model_files,
    model_paths,
    stem,
)
from hearth.app.library.sources import FoundModel as FoundModel
from hearth.app.library.sources import Origin as Origin
from hearth.app.library.sources import Source, stored_models
from hearth.app.nearest import nearest
from hearth.backends.errors import HearthError, ModelNotFound
from hearth.backends.remote.server import RemoteServer

BUNDLED = ("guide", "guide-draft")
_DRAFT = "guide-draft"
"""The draft model of guide, which is found by name but not listed."""
LATEST: Final = ":latest"
"""Ollama's tag of models without another tag; names may end with it, and do in Ollama's lists."""
_HUB_PREFIXES: Final = ("hf.co/", "huggingface.co/")
"""Ollama's prefixes of repositories on the Hugging Face Hub."""
_WILDCARD: Final = re.compile(r"[*?\[]")
MODEL_SUFFIXES = (SUFFIX, WEIGHTS, *PICKLE_SUFFIXES)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine, a GGUF file or a folder of safetensors, and facts from its headers.

    `error` is the reason if they could not be read. For a remote model, which is not contacted,
    only its `url` is known.
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
    """The URL of a remote model; else empty."""
    repo: str = ""
    """The repository on the Hub that the model came from; empty if unknown."""


class Library:
    """The models that this machine can use.

    These are the bundled and the remote models, the GGUF files and folders of safetensors in one
    folder and its subfolders, and the models that other programs store on this machine.

    Args:
        folder: the library folder; need not exist.
        bundled: folder of the bundled models; by default the installed one.
        remotes: models of other machines.
        aliases: as in `Aliases`.
        sources: places where other programs store models, which are used in place.
        facts_file: the file that stores facts from headers (`facts.KnownFacts`); None: not stored.
    """

    def __init__(
        self,
        folder: Path,
        bundled: Path | None = None,
        remotes: Iterable[RemoteServer] = (),
        aliases: Mapping[str, str] | None = None,
        sources: Iterable[Source] = (),
        facts_file: Path | None = None,
    ) -> None:
        self.folder = folder
        self._given_bundled = bundled
        self._remotes = tuple(remotes)
        self._aliases = Aliases(aliases)
        self.sources = tuple(sources)
        self._facts_file = facts_file

    @cached_property
    def _bundled(self) -> Path:
        return self._given_bundled or bundled_folder()

    def found(self) -> list[FoundModel]:
        """Every model, under a unique name, without reading weights or opening a connection.

        Bundled models, remote ones, those of the library folder, and those of other programs that
        are not in the library folder too.

        A model is named after its folder, or its file without suffix. If two would have the same
        name, it begins with the parent folder; if that name is taken too, it is the path in the
        library folder with the suffix, or begins with "library". A model of another program whose
        name is taken has a name that begins with its repository or the program.
        """
        fixed = self.fixed()
        models = [model for model in fixed if model.name != _DRAFT]
        paths = [path for path in model_paths(self.folder) if path != self.folder]
        paths.sort(key=lambda path: (stem(path).lower(), path))
        stems = Counter(stem(path).lower() for path in paths)
        stems.update((*BUNDLED, *(remote.name.lower() for remote in self._remotes)))
        taken = {model.name.lower() for model in fixed}
        ambiguous = {name for name, times in stems.items() if times > 1}
        for path in paths:
            name = stem(path)
            if name.lower() in ambiguous:
                name = (path.parent.relative_to(self.folder) / name).as_posix()
            if name.lower() in taken:
                name = path.relative_to(self.folder).as_posix()
            if name.lower() in taken:
                name = f"library/{name}"
            taken.add(name.lower())
            models.append(FoundModel(name, path, "library"))
        return [*models, *self._elsewhere(taken | ambiguous, {identity(path) for path in paths})]

    def fixed(self) -> list[FoundModel]:
        """The models that are known without a scan: bundled and remote ones."""
        return [
            *(
                FoundModel(name, path, "bundled")
                for name in BUNDLED
                if (path := self._bundled / f"{name}.f16.gguf").is_file()
            ),
            *(
                FoundModel(remote.name, Path(remote.url, "models", remote.name), "remote", remote)
                for remote in self._remotes
            ),
        ]

    def _elsewhere(
        self, taken: set[str], here: set[tuple[int, int] | None]
    ) -> Iterator[FoundModel]:
        """The models of other programs that are not in `here`, under names that are not `taken`."""
        for stored in stored_models(self.sources):
            if identity(stored.path) in here:
                continue
            name = next(name for name in _names(stored) if name.lower() not in taken)
            taken.add(name.lower())
            yield replace(stored, name=name, also=(stored.name, *stored.also))

    def list(self, *, refresh: bool = False) -> Sequence[LocalModel]:
        """Every model with the facts of its header, or with the error of reading it.

        Args:
            refresh: whether to read the headers of unchanged files again, too.
        """
        facts = KnownFacts(None if refresh else self._facts_file)
        models = [describe(model, facts) for model in self.found()]
        facts.keep()
        return models

    def resolve(self, name_or_path: str) -> FoundModel:
        """The model that `name_or_path` refers to.

        It is treated as a path if it can only be one, else as a name for `ModelNames.find`, else as
        a path without folder or suffix.

        Raises:
            ModelNotFound: with the most similar names and the way to add a model; also if more than
                one model has that name.
            UnsupportedModel, CorruptFile: the path is not that of a model.
        """
        if (model := model_by_path(name_or_path)) is not None:
            return model
        names = self.names()
        model = names.find(name_or_path)
        if model is None:
            return self.at_path(name_or_path, names.models)
        if model.remote is None:
            model_at(model.path)
        return model

    def names(self, first: Sequence[FoundModel] = ()) -> ModelNames:
        """The names of all models, read from the disk now.

        Args:
            first: models that may not be in the library; they take precedence if names are equal.
        """
        paths = {model.path for model in first}
        return self.names_of(
            [*first, *(model for model in self.found() if model.path not in paths)]
        )

    def names_of(self, models: Sequence[FoundModel]) -> ModelNames:
        """The names of `models`, with the library's aliases and the models that are not listed."""
        unlisted = [model for model in self.fixed() if model.name == _DRAFT]
        return ModelNames(models, self._aliases, unlisted)

    def at_path(self, path: str, known: Sequence[FoundModel]) -> FoundModel:
        """The model at `path`, which is not the name of one. Raises as `resolve`.

        Args:
            known: the models whose names are suggested if nothing is at `path`.
        """
        place = Path(path).expanduser()
        if place.exists():
            return _at(place)
        raise self._not_found(path, [model.name for model in known])

    def _not_found(self, name: str, names: Sequence[str]) -> HearthError:
        if name.lower() in BUNDLED:
            return ModelNotFound(
                f"The bundled model {name} is missing from {self._bundled}.",
                "The installation is incomplete: install Hearth again.",
            )
        from hearth.app.library.catalogue import pull_command

        near = nearest(name, names, most=3)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        command = pull_command(name)
        way = (
            f"`{command}` downloads it, if the Hub has it."
            if command
            else "`hearth pull` shows what can be downloaded."
        )
        return ModelNotFound(
            f'There is no model "{name}".',
            f"{guess}`hearth list` shows the models that are here. {way} A .gguf file, or a "
            f"folder of safetensors, can also be put into {self.folder}, or run by its path: "
            "hearth run ./model.gguf.",
            name=name,
            nearest=near,
            **({"pull": command} if command else {}),
        )


class Aliases:
    """The model that each alias stands for.

    Args:
        targets: names of models by alias in lower case; an alias with `*`, `?` or `[...]` is a
            pattern of `fnmatch`.
    """

    def __init__(self, targets: Mapping[str, str] | None = None) -> None:
        self._exact = dict(targets or {})
        patterns = [alias for alias in self._exact if _WILDCARD.search(alias)]
        patterns.sort(key=lambda alias: (-len(_WILDCARD.split(alias)[0]), alias))
        self._patterns = [(alias, self._exact.pop(alias)) for alias in patterns]

    def exact(self, name: str) -> str:
        """The model that the alias `name`, in lower case, stands for; empty if it is not one."""
        return self._exact.get(name, "")

    def wildcards(self, name: str) -> Iterator[str]:
        """The models of the patterns that `name`, in lower case, matches.

        Patterns with a longer text before their first wildcard come first.
        """
        return (target for pattern, target in self._patterns if fnmatchcase(name, pattern))


class ModelNames:
    """The model that each name stands for; finding one needs no scan and reads no model file.

    Attributes:
        models: all listed models, in order.
    """

    def __init__(
        self,
        models: Sequence[FoundModel],
        aliases: Aliases,
        unlisted: Sequence[FoundModel] = (),
    ) -> None:
        self.models = models
        self._aliases = aliases
        self._by_name: dict[str, FoundModel] = {}
        self._by_other_name: dict[str, list[FoundModel]] = {}
        self._by_repo: dict[str, list[FoundModel]] = {}
        for model in dict.fromkeys((*models, *unlisted)):
            self._by_name.setdefault(model.name.lower(), model)
            if model.remote is None:
                for name in {stem(model.path).lower(), *map(str.lower, model.also)}:
                    self._by_other_name.setdefault(name, []).append(model)
                if model.repo:
                    self._by_repo.setdefault(model.repo.lower(), []).append(model)

    def find(self, name: str) -> FoundModel | None:
        """The model called `name`; None if there is none.

        Names are compared ignoring case, and tried in this order: the models' own names, exact
        aliases, further names (of the file, or those that another program uses) and repositories on
        the Hub (`org/name` or `org/name:QUANT`, with or without `hf.co/`), aliases with wildcards.
        Each is tried with `LATEST` at the end of `name`, if it is there, and then without.

        Raises:
            ModelNotFound: more than one model has that further name or repository; `names` in
                `data` lists them.
        """
        forms = dict.fromkeys((name, name.removesuffix(LATEST)))
        for find in (self.own, self._by_alias, self._other, self._by_wildcard):
            for form in forms:
                if (model := find(form)) is not None:
                    return model
        return None

    def _by_alias(self, name: str) -> FoundModel | None:
        target = self._aliases.exact(name.lower())
        return self._named(target) if target else None

    def _by_wildcard(self, name: str) -> FoundModel | None:
        targets = map(self._named, self._aliases.wildcards(name.lower()))
        return next(filter(None, targets), None)

    def _named(self, target: str) -> FoundModel | None:
        return self.own(target) or self._other(target)

    def own(self, name: str) -> FoundModel | None:
        """The model whose own name is `name`; None if there is none."""
        typed = name.lower()
        return self._by_name.get(typed) or self._by_name.get(typed.removesuffix(SUFFIX))

    def _other(self, name: str) -> FoundModel | None:
        typed = name.lower()
        for same in (
            self._by_other_name.get(typed.removesuffix(SUFFIX), ()),
            self._of_repository(typed),
        ):
            if len(same) == 1:
                return same[0]
            if same:
                names = [model.name for model in same]
                raise ModelNotFound(
                    f"{len(same)} models go by the name {name[:100]}.",
                    f"Use one of these names: {', '.join(names)}.",
                    names=names,
                )
        return None

    def _of_repository(self, typed: str) -> Sequence[FoundModel]:
        """The models of the repository that `typed` names, itself or by a name of the catalogue.

        If `typed` includes a quantization, only models of that quantization.
        """
        repo, _, quant = without_hub(typed).partition(":")
        models = self._by_repo.get(catalogue_repos().get(repo, repo), ())
        return [model for model in models if has_quant(model.path, quant)] if quant else models


def without_hub(name: str) -> str:
    """`name` without Ollama's prefix of repositories on the Hub."""
    for prefix in _HUB_PREFIXES:
        name = name.removeprefix(prefix)
    return name


@cache
def catalogue_repos() -> Mapping[str, str]:
    """The repositories of the catalogue's models by model name, all in lower case."""
    from hearth.app.library.catalogue import load_catalogue

    return {entry.name: entry.repo.lower() for entry in load_catalogue().entries}


def _names(stored: FoundModel) -> Iterator[str]:
    """Possible names for a model of another program, the shortest first; the last is unique."""
    yield stored.name
    if stored.repo:
        yield f"{stored.repo}/{stored.name}"
    yield f"{stored.origin}/{stored.repo or stored.path.parent.name}/{stored.name}"
    yield str(stored.path)


def bundled_folder() -> Path:
    """The folder of the models that come with Hearth."""
    from importlib.resources import files

    return Path(str(files("hearth.assets"))) / "guide"


def describe(model: FoundModel, facts: KnownFacts | None = None) -> LocalModel:
    """`model` with its size and the facts of its header, or with the reason in `error`.

    Args:
        facts: stored facts; None: the header is read.
    """
    if model.remote is not None:
        return LocalModel(model.name, model.path, model.origin, 0, url=model.remote.url)
    known = LocalModel(model.name, model.path, model.origin, 0, repo=model.repo)
    try:
        known = replace(known, size_bytes=_size_on_disk(model.path))
        header_facts = (facts or KnownFacts(None)).of(model.path)
    except OSError as error:
        return replace(known, size_bytes=0, error=error.strerror or str(error))
    except HearthError as error:
        return replace(known, error=error.message)
    return replace(known, **asdict(header_facts))


def _size_on_disk(path: Path) -> int:
    """The size of the file, or of the folder's weights. Raises `OSError` if `path` is missing."""
    size_bytes = path.stat().st_size
    if not path.is_dir():
        return size_bytes
    return sum(file.stat().st_size for file in model_files(path) if file.suffix == WEIGHTS)


def model_by_path(text: str) -> FoundModel | None:
    """The model at the path `text`; None if `text` may be a name. Raises as `Library.resolve`."""
    return _at(Path(text).expanduser()) if _looks_like_path(text) else None


def _looks_like_path(text: str) -> bool:
    """Whether `text` can only be a path.

    It is if it is rooted, or ends like a model file and has a folder or exists.
    """
    path = Path(text)
    if text.startswith(("~", ".")) or path.is_absolute() or "\\" in text:
        return True
    return path.suffix.lower() in MODEL_SUFFIXES and (len(path.parts) > 1 or path.exists())


def _at(path: Path) -> FoundModel:
    model = model_at(path.absolute())
    return FoundModel(stem(model), model, "path")
