"""How much memory a GGUF model needs to be of use, by the figures that it is loaded with."""

from __future__ import annotations

from pathlib import Path

from hearth.backends.contract import ModelSettings
from hearth.backends.llamacpp.params import (
    COMPUTE_BYTES,
    GROWTH_FACTOR,
    MAX_SEQUENCES,
    check_settings,
    head_count,
    plan_context,
)
from hearth.backends.llamacpp.recurrent import state_bytes
from hearth.quant.gguf import preflight

_NO_LIMIT = 1 << 62
"""Bytes: what the model needs does not depend on what there is."""


def needed_bytes(path: Path, settings: ModelSettings) -> int:
    """Weights, recurrent states, buffers, and keys and values for one full context
    (`ModelSettings.context`, or what the model was trained for, or what the KV budget allows), with
    the copy that a growing pool makes; for the whole pool where that is static.

    Raises:
        CorruptFile, UnsupportedModel: the file cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget.
    """
    header = preflight.check(path)
    check_settings(settings, MAX_SEQUENCES)
    weight_bytes = sum(tensor.nbytes for tensor in header.all_tensors)
    plan = plan_context(settings, header, weight_bytes=weight_bytes, available_bytes=_NO_LIMIT)
    cells = plan.pool_tokens if settings.kv_pool == "static" else plan.context
    per_cell = plan.kv_bytes_per_token * GROWTH_FACTOR[settings.kv_pool]
    if settings.flash_attention is False:
        per_cell += 4 * plan.ubatch * head_count(header)
    states = state_bytes(header) * plan.sequences
    return weight_bytes + states + COMPUTE_BYTES + int(cells * per_cell)
