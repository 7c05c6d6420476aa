"""How much memory a model takes when the native runner has it, from headers alone and without
torch: the host asks, before anything is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from hearth.backends.contract.checks import check_settings
from hearth.backends.contract.models import Dtype, ModelSettings
from hearth.backends.machine.gpus import has_cuda
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.kv_sizes import KvSizes, kv_sizes
from hearth.backends.native.model_folder import (
    kv_number_bytes,
    own_dtype,
    read_model_folder,
    weight_bytes,
)
from hearth.quant.families.config import ModelConfig
from hearth.quant.gguf import preflight
from hearth.quant.stored import StoredTensor

MAX_SESSIONS: Final = 256
"""Rows of one step, at most."""
WORKSPACE_BYTES: Final = 256 << 20
"""Activations and logits of a step, held back from the pool."""
PAGE: Final = 16
"""Tokens of a block where pages are gathered: a tail wastes half of one on average. Where a kernel
reads block tables they are larger (`varlen_attention.PAGE`), and a full context takes up to one
such block more than is worked out here.
"""
_HALF_BYTES: Final = 2


def needed_bytes(path: Path, settings: ModelSettings) -> int:
    """Memory to set aside for a model: weights, workspace, and keys and values of one full context
    (`ModelSettings.context`, or what the model was trained for, or what the KV budget allows), or
    of all sessions where the pool is static; with the windows of all sessions, see `KvSizes`.

    Raises:
        CorruptFile, UnsupportedModel, ModelNotFound: it cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget.
        OSError: it cannot be read.
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
    dtype = settings.dtype or own_dtype(stored)
    unpacked = weight_bytes(stored, dtype, packed=False)
    packed = stays_packed(unpacked, settings.memory_fraction, on_gpu=on_gpu)
    weights = weight_bytes(stored, dtype, packed=packed)
    if not (packed or is_mapped(weights)):
        weights += half_head_bytes(config, settings, dtype)
    number_bytes = kv_number_bytes(settings.kv_type)
    sizes = kv_sizes(config, settings, number_bytes=number_bytes, page=PAGE)
    return weights + WORKSPACE_BYTES + pool_bytes(settings, sizes, config.context)


def pool_bytes(settings: ModelSettings, sizes: KvSizes, trained: int) -> int:
    """Of the keys and values to set aside for.

    Args:
        trained: tokens that the model was trained for.

    Raises:
        DoesNotFit: the context that was asked for does not fit into the KV budget.
    """
    context = settings.context or trained
    times = settings.max_sessions if settings.kv_pool == "static" else 1
    asked = sizes.pool_bytes(times * sizes.pages(context) * sizes.page)
    budget = sizes.checked_budget(settings)
    return asked if budget is None else min(asked, budget)


def stays_packed(unpacked_bytes: int, memory_fraction: float, *, on_gpu: bool) -> bool:
    """Whether packed matrices stay so. On a processor unpacking them for each step takes longer
    than all else, so they are unpacked once where half of the memory that may be taken
    (`memory_fraction` of what is free) is enough for it.
    """
    return on_gpu or unpacked_bytes > available_bytes() * memory_fraction / 2


def is_mapped(weight_bytes: int) -> bool:
    """Whether weights on the processor stay over their file where they can. Those that take at most
    half of the free memory are read: memory of our own has large pages.
    """
    return weight_bytes > available_bytes() // 2


def is_on_gpu(settings: ModelSettings) -> bool:
    """Whether the native runner takes a GPU."""
    return settings.gpu_layers != 0 and (has_cuda() or sys.platform == "darwin")


def half_head_bytes(config: ModelConfig, settings: ModelSettings, dtype: Dtype) -> int:
    """Of the output matrix where matrices of half precision are packed (`half_packing`) and it is
    the embedding too, of which rows are read: it is there twice then. Processors that need no such
    matrices take less than this says.
    """
    if not config.tied or dtype == "f32" or settings.deterministic or is_on_gpu(settings):
        return 0
    return _HALF_BYTES * config.vocab_size * config.width
