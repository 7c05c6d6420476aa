"""How much memory a model takes in the native runner, from headers alone and without torch.

The host uses this before anything is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from hearth.backends.contract.checks import check_settings
from hearth.backends.contract.models import Dtype, ModelSettings
from hearth.backends.machine.gpus import card_free_bytes, has_cuda
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.kv_sizes import KvSizes, kv_sizes, queued_bytes
from hearth.backends.native.model_folder import (
    held_as,
    own_dtype,
    read_model_folder,
    weight_bytes,
)
from hearth.backends.native.workspace import Workspace
from hearth.kernels.cpu.layouts import multiplied
from hearth.kernels.cuda.packings import PACKINGS, WIDER, has_graphs, is_installed
from hearth.kernels.metal.packings import PACKINGS as METAL_PACKINGS
from hearth.kernels.metal.packings import is_left_out
from hearth.quant.families.config import ModelConfig
from hearth.quant.gguf import preflight
from hearth.quant.stored import STAYS_PACKED, StoredTensor

MAX_SESSIONS: Final = 256
"""Most rows of one step."""
PAGE: Final = 16
"""Tokens of a KV block: the last block of a sequence wastes half of it on average."""
START_TOKENS: Final = 4096
"""Initial size in tokens of a pool that grows on a GPU."""
_GROWTH: Final = 1.5
"""Peak memory of a growing pool relative to its size: a tensor being doubled exists twice."""


def needed_bytes(path: Path, settings: ModelSettings, *, scores: bool = True) -> int:
    """Bytes of memory to reserve for a model: weights, workspace, keys and values.

    Keys and values are those of one full context (`ModelSettings.context`, or what the model was
    trained for, or what the KV budget allows), or those of all sessions if the pool is static. The
    windows of all sessions are included, see `KvSizes`.

    Args:
        scores: see `Workspace.bytes`. With False the result is the most memory that a worker takes
            that is never asked for scores, including the copies that wait to be written to disk,
            for which the plan reserves nothing.

    Raises:
        CorruptFile, UnsupportedModel, ModelNotFound: the model cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget.
        OSError: a file cannot be read.
    """
    check_settings(settings, MAX_SESSIONS)
    if path.suffix == ".safetensors":
        path = path.parent
    on_gpu = is_on_gpu(settings)
    stored: list[StoredTensor]
    if path.is_dir():
        folder = read_model_folder(path)
        stored, config = list(folder.tensors), folder.config
    else:
        header = preflight.check(path)
        stored = [tensor.stored for tensor in header.all_tensors]
        _, config = read_gguf_config(header)
    config = settings.rope.applied_to(config)
    dtype = settings.dtype or own_dtype(stored)
    packed = packed_types(
        stored,
        settings,
        dtype,
        free_bytes=_free_bytes(settings, on_gpu=on_gpu),
        gpu_least_bytes=least_bytes(config, settings) if on_gpu else None,
        on_gpu=_packings() if on_gpu else frozenset(),
    )
    weights = weight_bytes(stored, dtype, packed=packed, on_gpu=on_gpu)
    sizes = kv_sizes(config, settings, page=PAGE)
    tokens = pool_tokens(settings, sizes, config.context)
    graphs = on_gpu and may_have_graphs(settings)
    workspace = Workspace(config, settings, graphs=graphs)
    pool = sizes.pool_bytes(tokens) + graphs * sizes.block_bytes
    queued = 0 if on_gpu or scores else queued_bytes(sizes, settings, tokens)
    return weights + workspace.bytes(tokens, scores=scores) + pool + queued


def card_packings() -> frozenset[str]:
    """Types that NVIDIA cards multiply packed.

    Cards before Ampere, which have no kernels, are not distinguished here.
    """
    return PACKINGS | WIDER.keys() if is_installed() else frozenset()


def _packings() -> frozenset[str]:
    """Types that the GPU multiplies packed."""
    if has_cuda():
        return card_packings()
    return frozenset() if is_left_out() else METAL_PACKINGS | WIDER.keys()


def pool_tokens(settings: ModelSettings, sizes: KvSizes, trained: int) -> int:
    """Size in tokens of the pool to reserve memory for.

    Args:
        trained: context in tokens that the model was trained for.

    Raises:
        DoesNotFit: the requested context does not fit into the KV budget.
    """
    times = settings.max_sessions if settings.kv_pool == "static" else 1
    most = times * sizes.pages(settings.context or trained) * sizes.page
    budget = sizes.checked_budget(settings)
    return most if budget is None else sizes.tokens_in(budget, most)


def packed_types(
    stored: Collection[StoredTensor],
    settings: ModelSettings,
    dtype: Dtype,
    *,
    free_bytes: int,
    gpu_least_bytes: int | None = None,
    on_gpu: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Types of `stored` whose matrices stay packed.

    These are the types that the device's kernels multiply, unless half precision is requested; if
    memory is short, also all others that can stay packed.

    Args:
        stored: the tensors in the files.
        dtype: of plain weights.
        free_bytes, gpu_least_bytes: see `stays_packed`.
        on_gpu: types that the GPU's kernels multiply.
    """
    on_card = gpu_least_bytes is not None
    kept: frozenset[str] = frozenset()
    if settings.dtype in (None, "f32"):
        kept = on_gpu if on_card else multiplied()
    unpacked = weight_bytes(stored, dtype, packed=kept, on_gpu=on_card)
    if stays_packed(unpacked, settings, free_bytes=free_bytes, gpu_least_bytes=gpu_least_bytes):
        kept |= STAYS_PACKED
    return kept & {held_as(tensor) for tensor in stored}


def stays_packed(
    unpacked_bytes: int,
    settings: ModelSettings,
    *,
    free_bytes: int,
    gpu_least_bytes: int | None = None,
) -> bool:
    """Whether packed matrices that no kernel multiplies stay packed.

    Unpacking them in each step takes longer than everything else, so they are unpacked once if they
    fit: on a GPU into the usable memory (`memory_fraction` of the free memory), on a processor into
    half of it.

    Args:
        unpacked_bytes: size of the weights with these matrices unpacked.
        free_bytes: free memory of the device.
        gpu_least_bytes: memory that a GPU needs in addition (`least_bytes`); None on a processor.
    """
    usable = free_bytes * settings.memory_fraction
    if gpu_least_bytes is None:
        return unpacked_bytes > usable / 2
    return unpacked_bytes + gpu_least_bytes > usable


def least_bytes(config: ModelConfig, settings: ModelSettings) -> int:
    """Bytes that a GPU needs in addition to the weights.

    These are the workspace, and keys and values of the requested context or of the initial pool.
    """
    sizes = kv_sizes(config, settings, page=PAGE)
    tokens = settings.context or min(config.context, START_TOKENS)
    graphs = may_have_graphs(settings)
    pool = int(sizes.pool_bytes(tokens) * growth_factor(settings, on_gpu=True))
    pool += graphs * sizes.block_bytes
    return pool + Workspace(config, settings, graphs=graphs).bytes(tokens)


def may_have_graphs(settings: ModelSettings) -> bool:
    """Whether decode steps on a GPU may run as CUDA graphs, as far as is known without torch."""
    return has_cuda() and is_installed() and has_graphs() and rounds_freely(settings)


def rounds_freely(settings: ModelSettings) -> bool:
    """Whether kernels may round a prompt differently than the same tokens one by one."""
    return settings.flash_attention is not False and not settings.deterministic


def growth_factor(settings: ModelSettings, *, on_gpu: bool) -> float:
    """Peak memory of the KV pool while it grows, as a multiple of its final size."""
    return _GROWTH if on_gpu and settings.kv_pool == "grow" else 1.0


def _free_bytes(settings: ModelSettings, *, on_gpu: bool) -> int:
    """Free memory of the runner's device. Apple's GPUs share the memory of the machine."""
    free = card_free_bytes(settings.card) if on_gpu and has_cuda() else None
    return available_bytes() if free is None else free


def is_mapped(weight_bytes: int) -> bool:
    """Whether weights on the processor are mapped from their file where possible.

    Weights that take at most half of the free memory are read into allocated memory instead,
    because that has large pages.
    """
    return weight_bytes > available_bytes() // 2


def is_on_gpu(settings: ModelSettings) -> bool:
    """Whether the native runner uses a GPU."""
    return not settings.is_on_processor and (has_cuda() or sys.platform == "darwin")
