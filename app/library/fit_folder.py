"""Whether a model in safetensors fits this machine: what the native runner takes of its memory
(`hearth.backends.native.footprint`), so that what is reported here is what happens there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hearth.app.library.fit import USUAL_CONTEXT, Fit, Room, fit_of
from hearth.backends.contract import KvType, ModelSettings
from hearth.backends.native.footprint import (
    PAGE,
    WORKSPACE_BYTES,
    half_head_bytes,
    pool_bytes,
)
from hearth.backends.native.kv_sizes import kv_sizes
from hearth.backends.native.model_folder import ModelFolder, kv_number_bytes
from hearth.quant.memory import MemoryUse

_BASE_BYTES: Final = 224 << 20
"""What a worker takes without a model: the interpreter, PyTorch and what they need. VmHWM of one
that has imported it all (CPython 3.11, torch 2.11 for processors, Linux x86-64, 2026-11-21)."""
_EXPERTS: Final = ".experts."


@dataclass(frozen=True, slots=True)
class _Planned:
    """See `fit.Planned`."""

    context: int
    kv_type: KvType
    kv_bytes_per_token: int


def fit_of_folder(folder: ModelFolder, settings: ModelSettings, room: Room) -> Fit:
    """How a model whose headers are known suits this machine, all of it in memory.

    Args:
        settings: how it would be loaded; `context` None: `USUAL_CONTEXT`.

    Raises:
        InvalidParameter: a KV type that the native runner does not have.
    """
    trained = folder.config.context
    number_bytes = kv_number_bytes(settings.kv_type)
    sizes = kv_sizes(folder.config, settings, number_bytes=number_bytes, page=PAGE)
    dtype = settings.dtype or folder.dtype
    weights = folder.weight_bytes(dtype)
    head = 0 if 2 * weights > room.free_bytes else half_head_bytes(folder.config, settings, dtype)
    context = settings.context or min(trained, USUAL_CONTEXT)
    free = int(room.free_bytes * settings.memory_fraction) - weights - head - WORKSPACE_BYTES
    most = max(trained, context)
    largest = min(sizes.tokens_in(free, most), most)
    use = MemoryUse(
        weights=weights + head,
        repacked=0,
        kv=pool_bytes(settings, sizes, context),
        states=0,
        compute=WORKSPACE_BYTES,
        outputs=0,
        vocabulary=0,
        base=_BASE_BYTES,
        growing=0,
        turning=0,
        mapped=dtype == folder.dtype,
    )
    plan = _Planned(context, settings.kv_type, sizes.bytes_per_token)
    seen_bytes = sizes.seen_window_bytes(context)
    return fit_of(use, room, plan, largest, _read_bytes(folder, weights), window_bytes=seen_bytes)


def _read_bytes(folder: ModelFolder, weights: int) -> int:
    """Of weights that a token reads: of the experts only those that it goes through, and one row of
    an embedding that is not the output matrix too.
    """
    config = folder.config
    all_numbers = max(1, folder.parameters)
    unread = 0 if config.tied else (config.vocab_size - 1) * config.width
    if config.experts is not None:
        experts = sum(tensor.nbytes for tensor in folder.tensors if _EXPERTS in tensor.name) / max(
            1, sum(tensor.nbytes for tensor in folder.tensors)
        )
        idle = 1 - config.experts.active / config.experts.count
        unread += round(all_numbers * experts * idle)
    return max(1, round(weights * (1 - unread / all_numbers)))
