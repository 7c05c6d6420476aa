"""Models that other programs store on this machine, which are used in place and never written to.

Their places are determined again each time, because those programs come and go. No weights are
opened here, and models that cannot be read are left out without an error. Many safetensors in these
stores are not language models, so only those that the native runner supports are listed.

Layouts: the Hugging Face cache as in `cache_layout`; LM Studio
(`<publisher>/<repository>/<file>.gguf`, or safetensors there); Ollama
(`manifests/<host>/<namespace>/<name>/<tag>`, an OCI manifest whose layers are under `blobs/`);
llama.cpp (`<org>_<repository>_<file>.gguf`, all in one folder, next to
`manifest=<org>=<repository>=<tag>.json`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hearth.app.library.cache_layout import hub_cache, shared_hub_cache
from hearth.app.library.model_files import (
    SUFFIX,
    entries,
    identity,
    is_model_file,
    model_paths,
    read_start,
    stem,
)
from hearth.backends.errors import HearthError
from hearth.backends.remote.server import RemoteServer

Store = Literal["huggingface", "lmstudio", "ollama", "llama.cpp", "folder"]
Origin = Literal["bundled", "library", "path", "remote"] | Store

_NO_MODELS = ("mmproj", "imatrix")  # Projectors and importance matrices are not models.
_HUB_PREFIX = "models--"
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_NAMESPACE = "library"
_OLLAMA_LAYER = "application/vnd.ollama.image.model"
_MANIFEST_BYTES = 1 << 20
_COMMIT_BYTES = 64
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Source:
    """A folder in which a program stores models; it need not exist."""

    store: Store
    folder: Path


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The file or folder, or the model on another machine, that a name or path refers to."""

    name: str
    path: Path
    """The first file of a split model; for a remote model its URL, which is not a file."""
    origin: Origin
    remote: RemoteServer | None = None
    repo: str = ""
    """The repository on the Hub that the model came from, `org/name`; empty if unknown."""
    also: tuple[str, ...] = ()
    """Further names of the model."""


def find_sources(
    environ: Mapping[str, str] | None = None, folders: Iterable[str | Path] = ()
) -> tuple[Source, ...]:
    """The folders of other programs' models for this user, then `folders` from the settings.

    Args:
        environ: environment variables that move those folders; by default the process's own.
        folders: from the setting `library_folders`.
    """
    environ = os.environ if environ is None else environ
    home = _home(environ)
    caches = (hub_cache(environ), shared_hub_cache(environ))
    ollama = environ.get("OLLAMA_MODELS")
    return (
        *(Source("huggingface", folder) for folder in dict.fromkeys(caches)),
        Source("lmstudio", home / ".lmstudio" / "models"),
        Source("lmstudio", home / ".cache" / "lm-studio" / "models"),
        Source("ollama", Path(ollama) if ollama else home / ".ollama" / "models"),
        Source("llama.cpp", _llama_cache(environ)),
        *(Source("folder", Path(folder).expanduser().absolute()) for folder in folders),
    )


def stored_models(sources: Iterable[Source]) -> Iterator[FoundModel]:
    """The models in `sources`, in order, under short names, which need not be unique.

    Each file is listed only once, even if several links lead to it. No errors are raised: files
    that are unreadable or gone are left out.
    """
    seen: set[tuple[int, int]] = set()
    for source in sources:
        for model in _READERS[source.store](source.folder):
            file = identity(model.path)
            if file is not None and file not in seen:
                seen.add(file)
                yield model


def _models_in(root: Path) -> list[Path]:
    """The models below `root`, without projectors, importance matrices and unsupported folders."""
    return [
        path
        for path in model_paths(root)
        if not path.name.lower().startswith(_NO_MODELS)
        and (path.name.lower().endswith(SUFFIX) or _is_known(path))
    ]


def _is_known(folder: Path) -> bool:
    """Whether the native runner supports the model in `folder`: its family and variant."""
    from hearth.backends.native.model_folder import read_config

    try:
        read_config(folder)
    except (HearthError, OSError):
        return False
    return True


def _hugging_face(folder: Path) -> Iterator[FoundModel]:
    """The models in a Hugging Face cache.

    Files of commits that a branch points to come first. The same file of another commit has the
    beginning of the commit in its name.
    """
    for repo_entry in entries(folder):
        if not repo_entry.name.startswith(_HUB_PREFIX):
            continue
        repo = repo_entry.name.removeprefix(_HUB_PREFIX).replace("--", "/", 1)
        current = _branch_commits(Path(repo_entry.path, "refs"))
        snapshots = entries(Path(repo_entry.path, "snapshots"))
        names: set[str] = set()
        for snapshot in sorted(snapshots, key=lambda entry: entry.name not in current):
            for path in _models_in(Path(snapshot.path)):
                if path.suffix.lower() != SUFFIX and path != Path(snapshot.path):
                    continue  # A component, such as the text encoder of an image model.
                name = stem(path)
                inside = path.relative_to(snapshot.path).as_posix()
                if inside in names:
                    name = f"{name}@{snapshot.name[:7]}"
                names.add(inside)
                yield FoundModel(name, path, "huggingface", repo=repo)


def _branch_commits(refs: Path) -> set[str]:
    commits = set()
    for entry in entries(refs):
        try:
            start = read_start(Path(entry.path), _COMMIT_BYTES)
            commits.add(start.decode("ascii", "replace").strip())
        except OSError:
            continue
    return commits


def _lm_studio(folder: Path) -> Iterator[FoundModel]:
    for path in _models_in(folder):
        inside = path.relative_to(folder).parts
        is_file = path.name.lower().endswith(SUFFIX)
        repo = "/".join(inside[:2]) if len(inside) == (3 if is_file else 2) else ""
        yield FoundModel(stem(path), path, "lmstudio", repo=repo)


def _ollama(folder: Path) -> Iterator[FoundModel]:
    """The models of Ollama; `latest` is a further name if another tag refers to the same file."""
    manifests = folder / "manifests"
    tags: dict[str, list[tuple[str, str, Path]]] = {}
    for parts in _tags(manifests):
        path = _ollama_blob(folder, manifests.joinpath(*parts))
        if path is not None:
            host, namespace, name, tag = parts
            if host != _OLLAMA_HOST:
                name = f"{host}/{namespace}/{name}"
            elif namespace != _OLLAMA_NAMESPACE:
                name = f"{namespace}/{name}"
            repo = f"{namespace}/{parts[2]}" if host in ("hf.co", "huggingface.co") else ""
            tags.setdefault(name, []).append((tag, repo, path))
    for name, tagged in tags.items():
        latest = next((path for tag, _, path in tagged if tag == "latest"), None)
        named = {path for tag, _, path in tagged if tag != "latest"}
        for tag, repo, path in tagged:
            if tag == "latest" and path in named:
                continue
            also = (name, f"{name}:latest") if path == latest else ()
            yield FoundModel(f"{name}:{tag}", path, "ollama", repo=repo, also=also)


def _tags(manifests: Path) -> Iterator[tuple[str, str, str, str]]:
    for host in entries(manifests):
        for namespace in entries(Path(host.path)):
            for name in entries(Path(namespace.path)):
                for tag in entries(Path(name.path)):
                    yield host.name, namespace.name, name.name, tag.name


def _ollama_blob(folder: Path, manifest: Path) -> Path | None:
    """The path of the model's file of a manifest, which need not exist; None if malformed."""
    try:
        layers = json.loads(read_start(manifest, _MANIFEST_BYTES))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_LAYER]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    if len(digests) != 1 or not isinstance(digests[0], str):
        return None
    digest = _DIGEST.fullmatch(digests[0])
    return folder / "blobs" / f"sha256-{digest[1]}" if digest else None


def _llama_cpp(folder: Path) -> Iterator[FoundModel]:
    inside = entries(folder)
    repos = {
        f"{parts[1]}_{parts[2]}_": f"{parts[1]}/{parts[2]}"
        for entry in inside
        if len(parts := entry.name.removesuffix(".json").split("=")) == 4 and parts[0] == "manifest"
    }
    for entry in inside:
        if not is_model_file(entry):
            continue
        path = Path(entry.path)
        prefix = max((p for p in repos if entry.name.startswith(p)), key=len, default="")
        name = stem(path).removeprefix(prefix)
        if not name.lower().startswith(_NO_MODELS):
            yield FoundModel(name, path, "llama.cpp", repo=repos.get(prefix, ""))


def _any_folder(folder: Path) -> Iterator[FoundModel]:
    for path in model_paths(folder):
        if not path.name.lower().startswith(_NO_MODELS):
            yield FoundModel(stem(path), path, "folder")


_READERS = {
    "huggingface": _hugging_face,
    "lmstudio": _lm_studio,
    "ollama": _ollama,
    "llama.cpp": _llama_cpp,
    "folder": _any_folder,
}


def _home(environ: Mapping[str, str]) -> Path:
    """The user's home folder: that of the environment variable, else that of the system."""
    named = environ.get("USERPROFILE" if sys.platform == "win32" else "HOME")
    try:
        return Path(named) if named else Path.home()
    except RuntimeError:  # The user is unknown, so has no models.
        return Path(os.devnull)


def _llama_cache(environ: Mapping[str, str]) -> Path:
    """The cache folder of llama.cpp, as in `fs_get_cache_directory` of its common.cpp."""
    if environ.get("LLAMA_CACHE"):
        return Path(environ["LLAMA_CACHE"])
    if sys.platform == "darwin":
        return _home(environ) / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA", _home(environ)), "llama.cpp")
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else _home(environ) / ".cache") / "llama.cpp"
