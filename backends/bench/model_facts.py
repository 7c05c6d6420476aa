"""What measuring must know of a model before it is loaded, from its headers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from hearth.backends.bench.job import Job
from hearth.backends.contract.models import KvType, ModelSpec
from hearth.backends.errors import (
    HearthError,
    InvalidParameter,
    ModelNotFound,
    UnsupportedModel,
)
from hearth.backends.llamacpp import recurrent
from hearth.backends.native.model_folder import (
    ModelFolder,
    kv_number_bytes,
    read_model_folder,
)
from hearth.backends.worker.choice import choose, is_safetensors
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model, and how it will be run."""

    spec: ModelSpec
    """With the runner that "auto" stands for."""
    context: int
    """Tokens that it was trained for; 0: not said."""
    kv_bytes: Mapping[KvType, int]
    """Of one token, for each type that can be had."""
    kv_refusals: Mapping[KvType, HearthError]
    """Why the other types cannot be had."""
    weight_bytes: int
    """That each token reads; 0: not known, because the runner may unpack them."""
    mixture: bool = False
    state_bytes: int = 0
    """Recurrent, of one sequence."""
    folder: ModelFolder | None = None
    """Of safetensors, or None."""


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
        *_kv_types(folder.kv_bytes_per_token),
        weight_bytes=0
        if folder.checkpoint
        else folder.weight_bytes(settings.dtype or folder.dtype),
        mixture=folder.config.experts is not None,
        folder=folder,
    )


def _of_gguf(spec: ModelSpec, header: GgufFile) -> ModelFacts:
    is_native = spec.backend == "native"

    def kv_bytes(kv_type: KvType) -> int:
        if is_native:
            kv_number_bytes(kv_type)
        return header.kv_bytes_per_token(kv_type, kv_type)

    weights = 0 if is_native else sum(tensor.nbytes for tensor in header.all_tensors)
    return ModelFacts(
        spec,
        header.context_length,
        *_kv_types(kv_bytes),
        weight_bytes=weights,
        mixture=bool(header.value(f"{header.architecture}.expert_count", 0)),
        state_bytes=recurrent.state_bytes(header),
    )


def _kv_types(
    kv_bytes: Callable[[KvType], int],
) -> tuple[dict[KvType, int], dict[KvType, HearthError]]:
    """Bytes of a token for each type, and why there are none for the others."""
    found: dict[KvType, int] = {}
    refused: dict[KvType, HearthError] = {}
    for kv_type in get_args(KvType):
        try:
            found[kv_type] = kv_bytes(kv_type)
        except (UnsupportedModel, InvalidParameter) as error:
            refused[kv_type] = error
    return found, refused
