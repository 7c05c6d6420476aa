"""Facts about a model that a benchmark needs before it is loaded, read from its headers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hearth.backends.bench.job import Job
from hearth.backends.contract.models import KvType, ModelSpec
from hearth.backends.errors import (
    InvalidParameter,
    ModelNotFound,
)
from hearth.backends.llamacpp import recurrent
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import (
    ModelFolder,
    kv_bytes,
    read_model_folder,
)
from hearth.backends.worker.choice import choose, is_safetensors
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model and how it will be run."""

    spec: ModelSpec
    """The spec with the runner chosen for "auto"."""
    context: int
    """Tokens that the model was trained for; 0: unknown."""
    kv_bytes: Callable[[KvType, KvType], int]
    """Bytes of one token, by the types of keys and values; raises `InvalidParameter` or
    `UnsupportedModel` for a type that the runner or the model does not support.
    """
    weight_bytes: int
    """Bytes of weights that each token reads; 0: unknown, because the runner may unpack them."""
    mixture: bool = False
    state_bytes: int = 0
    """Bytes of the recurrent state of one sequence."""
    folder: ModelFolder | None = None
    """The folder of safetensors; None for a GGUF."""


def read_facts(job: Job) -> ModelFacts:
    """The facts of the model of `job`.

    Raises:
        ModelNotFound: there is no such file or folder.
        HearthError: its headers are damaged, or its runner cannot run it.
    """
    path = Path(job.spec.path)
    if not path.exists():
        raise ModelNotFound(f"There is no file {path}.", "`hearth list` shows the models you have.")
    if job.spec.backend == "remote":
        raise InvalidParameter("backend", "A model of another machine is not measured by its file.")
    spec = replace(job.spec, backend=choose(job.spec, Path(job.cache_dir)).runner)
    if is_safetensors(path):
        return _of_folder(spec, path if path.is_dir() else path.parent)
    return _of_gguf(spec, preflight.check(path))


def _of_folder(spec: ModelSpec, path: Path) -> ModelFacts:
    folder = read_model_folder(path)
    settings = spec.settings
    return ModelFacts(
        spec,
        folder.config.context,
        lambda *types: kv_bytes(folder.config, *types) * len(folder.config.layers),
        weight_bytes=0
        if folder.checkpoint
        else folder.weight_bytes(settings.dtype or folder.dtype),
        mixture=folder.config.experts is not None,
        folder=folder,
    )


def _of_gguf(spec: ModelSpec, header: GgufFile) -> ModelFacts:
    is_native = spec.backend == "native"

    def bytes_of(key_type: KvType, value_type: KvType) -> int:
        if is_native:
            kv_bytes(read_gguf_config(header)[1], key_type, value_type)
        return header.kv_bytes_per_token(key_type, value_type)

    weights = 0 if is_native else sum(tensor.nbytes for tensor in header.all_tensors)
    return ModelFacts(
        spec,
        header.context_length,
        bytes_of,
        weight_bytes=weights,
        mixture=bool(header.value(f"{header.architecture}.expert_count", 0)),
        state_bytes=recurrent.state_bytes(header),
    )
