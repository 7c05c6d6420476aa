"""Models that other programs keep on this machine: used in place, never written to.

Where they are is looked up again each time, since those programs come and go. No weights are opened
here, and what cannot be read is left out: a foreign store's trouble is not ours. Of safetensors,
stores have much that is no language model, so only what the native runner knows is listed.

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
    SHARD,
    SUFFIX,
    entries,
    identity,
    is_file,
    model_paths,
    read_start,
    stem,
)
from hearth.backends.errors import HearthError
from hearth.backends.remote.server import RemoteServer

Store = Literal["huggingface", "lmstudio", "ollama", "llama.cpp", "folder"]
Origin = Literal["bundled", "library", "path", "remote"] | Store

_NO_MODELS = ("mmproj", "imatrix")  # projectors and importance matrices, which no one can chat with
_HUB_PREFIX = "models--"
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_NAMESPACE = "library"
_OLLAMA_LAYER = "application/vnd.ollama.image.model"
_MANIFEST_BYTES = 1 << 20
_COMMIT_BYTES = 64
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Source:
    """A folder that a program keeps models in; it need not exist."""

    store: Store
    folder: Path


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Which file or folder, or which model of another machine, a name or path stands for."""

    name: str
    path: Path
    """Of a split model its first file; of a remote one its URL, which is no file."""
    origin: Origin
    remote: RemoteServer | None = None
    repo: str = ""
    """The repository on the Hub that it came from, `org/name`, if that is known."""
    also: tuple[str, ...] = ()
    """Further names that it answers to."""


def find_sources(
    environ: Mapping[str, str] | None = None, folders: Iterable[str | Path] = ()
) -> tuple[Source, ...]:
    """Where the models of other programs are for this user, then `folders` that a person named.

    Args:
        environ: variables that move those places; by default the process's own.
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
    """The models in `sources` under short names, in their order; each file once, also where links
    lead to it twice. Two may have the same name.

    Raises nothing: what is unreadable or gone is left out.
    """
    seen: set[tuple[int, int]] = set()
    for source in sources:
        for model in _READERS[source.store](source.folder):
            file = identity(model.path)
            if file is not None and file not in seen:
                seen.add(file)
                yield model


def _models_in(root: Path) -> list[Path]:
    """The models below `root`: no projectors and the like, and no folders that cannot be run."""
    return [
        path
        for path in model_paths(root)
        if not path.name.lower().startswith(_NO_MODELS)
        and (path.name.lower().endswith(SUFFIX) or _is_known(path))
    ]


def _is_known(folder: Path) -> bool:
    """The native runner knows the family of the model in `folder`, and this variant of it."""
    from hearth.backends.native.model_folder import read_config

    try:
        read_config(folder)
    except (HearthError, OSError):
        return False
    return True


def _hugging_face(folder: Path) -> Iterator[FoundModel]:
    """Files of the commits that a branch points to come before those of others, which bear the
    beginning of their commit in their name.
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
                    continue  # A part of something else, such as what a picture model reads with.
                name = stem(path)
                inside = path.relative_to(snapshot.path).as_posix()
                if inside in names:
                    name = f"{name}@{snapshot.name[:7]}"
                names.add(inside)
                yield FoundModel(name, path, "huggingface", repo=repo)


def _branch_commits(refs: Path) -> set[str]:
    found = set()
    for entry in entries(refs):
        try:
            start = read_start(Path(entry.path), _COMMIT_BYTES)
            found.add(start.decode("ascii", "replace").strip())
        except OSError:
            continue
    return found


def _lm_studio(folder: Path) -> Iterator[FoundModel]:
    for path in _models_in(folder):
        inside = path.relative_to(folder).parts
        is_file = path.name.lower().endswith(SUFFIX)
        repo = "/".join(inside[:2]) if len(inside) == (3 if is_file else 2) else ""
        yield FoundModel(stem(path), path, "lmstudio", repo=repo)


def _ollama(folder: Path) -> Iterator[FoundModel]:
    """`latest` is a further name where another tag of the model is the same file."""
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
    """The model's file of a manifest; None where it is not complete, or the manifest odd."""
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
    found = entries(folder)
    repos = {
        f"{parts[1]}_{parts[2]}_": f"{parts[1]}/{parts[2]}"
        for entry in found
        if len(parts := entry.name.removesuffix(".json").split("=")) == 4 and parts[0] == "manifest"
    }
    for entry in found:
        path = Path(entry.path)
        part = SHARD.search(entry.name)
        if not entry.name.lower().endswith(SUFFIX) or (part is not None and int(part[1]) != 1):
            continue
        if not is_file(entry):
            continue
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
    """The user's folder by its variable, so that it can be another one; then by the system."""
    named = environ.get("USERPROFILE" if sys.platform == "win32" else "HOME")
    try:
        return Path(named) if named else Path.home()
    except RuntimeError:  # There is no such user, so nothing is there.
        return Path(os.devnull)


def _llama_cache(environ: Mapping[str, str]) -> Path:
    """As `fs_get_cache_directory` of llama.cpp's common.cpp finds it."""
    if environ.get("LLAMA_CACHE"):
        return Path(environ["LLAMA_CACHE"])
    if sys.platform == "darwin":
        return _home(environ) / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA", _home(environ)), "llama.cpp")
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else _home(environ) / ".cache") / "llama.cpp"
