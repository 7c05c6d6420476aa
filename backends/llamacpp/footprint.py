"""How much memory a GGUF model takes with llama.cpp, according to the plan it is loaded with."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import ModelSettings
from hearth.backends.llamacpp.facts import GgufFacts
from hearth.backends.llamacpp.offload import Offload
from hearth.backends.llamacpp.params import (
    CELL_ALIGNMENT,
    COMPUTE_BYTES,
    GROWTH_FACTOR,
    MAX_SEQUENCES,
    ContextPlan,
    check_settings,
    larger_pool,
    plan_context,
)
from hearth.backends.llamacpp.recurrent import state_bytes
from hearth.backends.llamacpp.rope import rope_params
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from hearth.quant.memory import MemoryUse, Pool, memory_use
from hearth.quant.memory_shape import shape_of
from hearth.quant.memory_weights import repacked_types, weights_of

NO_LIMIT: Final = 1 << 62
"""Available bytes, for a plan that does not depend on the machine's memory."""
READ_SHARE: Final = 0.5
"""Weights that take at most this share of the free memory are read, not mapped: allocated memory
has large pages, and repacked weights are not held twice. Larger weights are mapped, so that the
system can drop pages.
"""


def needed_bytes(path: Path, settings: ModelSettings) -> int:
    """Bytes of memory to reserve for a model.

    This is what it takes with one full context (`ModelSettings.context`, or what the model was
    trained for, or what the KV budget allows), or with the whole pool if that is static; and no
    less than `plan_context` counts. Layers on a GPU are counted too, because only the worker knows
    the GPU's memory, from llama.cpp.

    Raises:
        CorruptFile, UnsupportedModel: the file cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget.
    """
    header = preflight.check(path)
    check_settings(settings, MAX_SEQUENCES)
    plan = plan_for(header, settings)
    return max(_planned_bytes(header, settings, plan), memory_of(header, plan).needed)


def plan_for(
    header: GgufFile,
    settings: ModelSettings,
    available_bytes: int = NO_LIMIT,
    offload: Offload | None = None,
) -> ContextPlan:
    """The plan that a model is loaded with, given `available_bytes` of free memory.

    Args:
        offload: see `plan_context`.

    Raises:
        InvalidParameter, DoesNotFit, UnsupportedModel: as `plan_context`.
    """
    return plan_context(
        settings,
        header,
        weight_bytes=weight_bytes(header),
        available_bytes=available_bytes,
        offload=offload,
        rope=rope_params(settings.rope, header),
    )


def memory_of(
    header: GgufFile,
    plan: ContextPlan,
    *,
    tokens: int | None = None,
    cpu_flags: Collection[str] = (),
    available_bytes: int = NO_LIMIT,
) -> MemoryUse:
    """Memory that a worker takes whose pool holds `tokens`, with nothing on a GPU.

    `total` is the indispensable memory; `most` includes a change of attention (`store.transpose`).
    Background prefill, offloaded prefixes and a context for embeddings take additional memory. Like
    the change of attention, they happen only if there is enough free memory.

    Args:
        header: of the model.
        plan: the plan that the model is loaded with.
        tokens: in the pool, of all sequences; None for one full context, or for the whole pool if
            it is static.
        cpu_flags: of /proc/cpuinfo; they determine which weights are repacked.
        available_bytes: free before the model is loaded; determines whether the file is mapped.
    """
    mapped = is_mapped(weight_bytes(header), available_bytes)
    weights = weights_of(header, repacked_types(cpu_flags), mapped=mapped)
    pool = pool_of(header, plan, _filled(plan) if tokens is None else tokens)
    return memory_use(shape_of(header), weights, pool)


def weight_bytes(header: GgufFile) -> int:
    """Size of all tensors of a model."""
    return sum(tensor.nbytes for tensor in header.all_tensors)


def is_mapped(weights: int, available_bytes: int) -> bool:
    """Whether `weights` bytes on the processor are mapped, given `available_bytes` of memory."""
    return weights > READ_SHARE * available_bytes


def pool_of(facts: GgufFacts, plan: ContextPlan, tokens: int) -> Pool:
    """The pool of `plan` once it holds `tokens`, for the memory calculator."""
    cells, copied = pool_cells(plan, tokens)
    a_state = state_bytes(facts)
    windows = facts.value(f"{facts.architecture}.attention.sliding_window", 0)
    return Pool(
        cells=cells,
        copied_cells=copied,
        part_cells=0 if a_state else min(plan.part_tokens, cells // 2),
        used_cells=math.ceil(min(tokens, cells) / CELL_ALIGNMENT) * CELL_ALIGNMENT,
        kv_type=plan.kv_type,
        value_type=plan.value_type,
        sequences=plan.sequences,
        tokens=plan.ubatch,
        outputs=plan.max_outputs,
        flash=plan.flash_attention != 0,
        state_bytes=a_state * plan.sequences,
        may_transpose=plan.flash_attention < 0 and not a_state and not windows,
    )


def pool_cells(plan: ContextPlan, tokens: int) -> tuple[int, int]:
    """Size of a pool that has grown to hold `tokens`, and its size before it last grew, in cells.

    The latter is what was copied when it grew (`store.LlamaStore`), or 0.
    """
    cells, copied = plan.first_tokens, 0
    while cells < min(tokens, plan.pool_tokens):
        cells, copied = larger_pool(cells, cells + 1, plan.pool_tokens), cells
    return math.ceil(cells / CELL_ALIGNMENT) * CELL_ALIGNMENT, copied


def _filled(plan: ContextPlan) -> int:
    """Tokens of one full context; of the whole pool if it has its full size from the start."""
    return max(plan.context, plan.first_tokens if plan.first_tokens == plan.pool_tokens else 0)


def _planned_bytes(header: GgufFile, settings: ModelSettings, plan: ContextPlan) -> int:
    """Bytes that `plan_context` counts: with this much memory, the plan's context is not cut."""
    cells = plan.pool_tokens if settings.kv_pool == "static" else plan.context
    per_cell = plan.kv_bytes_per_token * GROWTH_FACTOR[settings.kv_pool]
    if settings.flash_attention is False:
        per_cell += plan.scratch_bytes_per_cell
    states = state_bytes(header) * plan.sequences
    return weight_bytes(header) + states + COMPUTE_BYTES + int(cells * per_cell)
