"""How a model of the native runner is laid out in memory: device, dtypes, pages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hearth.backends.contract.checks import context_notices
from hearth.backends.contract.models import KvType, ModelSettings
from hearth.backends.errors import DoesNotFit, InvalidParameter
from hearth.backends.native.footprint import (
    PAGE,
    START_TOKENS,
    growth_factor,
    rounds_freely,
)
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.backends.native.kv_sizes import kv_sizes, step_tokens
from hearth.backends.native.split_attention import splits_rows
from hearth.backends.native.workspace import Workspace
from hearth.quant.families.config import ModelConfig


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Everything that a runner needs, apart from the weights."""

    device: torch.device
    dtype: torch.dtype
    """Dtype of weights that are not packed."""
    compute_dtype: torch.dtype
    """Dtype of activations and attention."""
    kv_dtypes: tuple[torch.dtype, torch.dtype]
    """Dtypes of keys and of values."""
    splits_decode: bool
    """Whether GPU kernels read pages directly: on NVIDIA cards for all rows (`CardAttention`), on
    Apple GPUs for rows of one token (`SplitAttention`). In all other cases pages are gathered
    (`PagedAttention`)."""
    graphs: bool
    """Decode steps may run as CUDA graphs (`DecodeGraphs`)."""
    page: int
    context: int
    """Most tokens of one sequence; never more than `pool_tokens`."""
    pool_tokens: int
    kept_tokens: int
    """Most tokens that are kept only for prefixes."""
    slots: int
    max_batch_tokens: int
    max_outputs: int
    blocks: tuple[int, ...]
    """Most blocks of each group of layers."""
    start_blocks: tuple[int, ...]
    """Initial blocks of each group, whose memory is always kept."""
    kv_bytes_per_token: int
    """Bytes of a token in layers without a window."""
    window_pool_bytes: int
    """Most bytes of the layers with a window."""
    is_fused: bool
    """Attention may use the device's fused kernels."""
    deterministic: bool
    has_shortlists: bool
    """Only shortlists of logits are copied from the device."""
    notices: tuple[str, ...] = ()
    packed: frozenset[str] = frozenset()
    """Types of weights that stay packed."""


def kv_dtype(kv_type: KvType, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that keys or values are stored in.

    On GPUs f16 means bfloat16 if the weights are bfloat16.

    Args:
        kv_type: a type that the runner supports (`kv_bytes`).

    Raises:
        InvalidParameter: the device does not support the type.
    """
    if kv_type == "fp8" and device.type == "mps":
        raise InvalidParameter(
            "kv_type",
            "PyTorch has no fp8 on the GPUs of Apple.",
            "Use kv_type q8_0 (--kv-type), or gpu_layers 0 (--gpu-layers).",
        )
    if kv_type != "f16":
        return {"q8_0": Q8_0, "fp8": FP8}.get(kv_type, torch.float32)
    is_bf16 = device.type != "cpu" and dtype == torch.bfloat16
    return torch.bfloat16 if is_bf16 else torch.float16


def plan_memory(
    settings: ModelSettings,
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    compute_dtype: torch.dtype,
    weight_bytes: int,
    available_bytes: int,
    triton: bool = False,
    graphs: bool = False,
) -> NativePlan:
    """Choose context length and pool size for a model on this machine.

    With context C and S sessions the pool holds C * S tokens, or what fits, or what the KV budget
    allows, whichever is least, in whole pages. Layers with a window take additional memory, see
    `KvSizes`. At most half of the pool is kept for prefixes without a running sequence.

    Args:
        settings: already checked by `check_settings`.
        config: for the context in `settings` (`ModelConfig.for_context`).
        weight_bytes: size of the weights in memory.
        available_bytes: free memory of the device before the weights are loaded.
        triton: the device has kernels in Triton (`has_triton`) or for Apple GPUs (`has_metal`).
        graphs: steps with these kernels may run as CUDA graphs (`has_graphs`).

    Raises:
        InvalidParameter: the runner does not support the KV type.
        DoesNotFit: the weights or the requested context need more memory than is available, or more
            than the KV budget; both numbers are in the message and in `data`.
    """
    types = settings.kv_type, settings.value_type
    keys, values = (kv_dtype(one, dtype, device) for one in types)
    sizes = kv_sizes(config, settings, page=PAGE)
    wanted = settings.context or config.context
    slots = settings.max_sessions
    factor = growth_factor(settings, on_gpu=device.type != "cpu")
    usable = int(available_bytes * settings.memory_fraction)
    splits_decode = (
        triton
        and splits_rows(config, device, (keys, values), compute_dtype)
        and rounds_freely(settings)
    )
    graphs = graphs and splits_decode
    workspace = Workspace(config, settings, graphs=graphs)

    def pool_bytes(tokens: int) -> int:
        return int(sizes.pool_bytes(tokens) * factor) + graphs * sizes.block_bytes

    def taken(tokens: int) -> int:
        return pool_bytes(tokens) + workspace.bytes(tokens)

    most = sizes.pages(wanted) * PAGE * slots
    fits = sizes.tokens_in(usable - weight_bytes, most, taken)
    if fits == 0 or (settings.context is not None and fits < wanted):
        need = weight_bytes + taken(wanted)
        hint = f"Set a context (--ctx) of {fits} or less" if fits else "Use a smaller model"
        if sizes.window_bytes(wanted) and slots > 1:
            hint += ", or a smaller max_sessions (--max-sessions)"
        parts = {
            "weights": weight_bytes,
            "keys and values": pool_bytes(wanted),
            "workspace": workspace.bytes(wanted) - workspace.graph_bytes,
            "CUDA graphs": workspace.graph_bytes,
        }
        listed = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items() if size)
        raise DoesNotFit(
            f"A context of {wanted:,} tokens needs {need / 1e9:.2f} GB ({listed}); "
            f"{usable / 1e9:.2f} GB are available.",
            f"{hint}, or close other programs.",
            needed_bytes=need,
            available_bytes=usable,
            context=wanted,
            fitting_context=fits,
            **{f"{name.lower().replace(' ', '_')}_bytes": size for name, size in parts.items()},
        )
    budget = sizes.checked_budget(settings)
    allowed = most if budget is None else sizes.tokens_in(budget, most)
    context = min(wanted, fits, allowed)
    pool_tokens = min(sizes.pages(context) * PAGE * slots, fits, allowed)
    blocks = sizes.blocks(pool_tokens)
    return NativePlan(
        device=device,
        dtype=dtype,
        compute_dtype=compute_dtype,
        kv_dtypes=(keys, values),
        splits_decode=splits_decode,
        graphs=graphs,
        page=PAGE,
        context=context,
        pool_tokens=pool_tokens,
        kept_tokens=pool_tokens // 2,
        slots=slots,
        max_batch_tokens=step_tokens(settings),
        max_outputs=workspace.outputs,
        blocks=blocks,
        start_blocks=_start_blocks(settings, blocks, device),
        kv_bytes_per_token=sizes.bytes_per_token,
        window_pool_bytes=sizes.window_bytes(pool_tokens),
        is_fused=settings.flash_attention is not False,
        deterministic=settings.deterministic,
        # Sums on the device may depend on the number of rows, so log probabilities would too.
        has_shortlists=device.type != "cpu" and not settings.deterministic,
        notices=_notices(settings, context, config.context, is_budget=allowed < fits),
    )


def _start_blocks(
    settings: ModelSettings, blocks: tuple[int, ...], device: torch.device
) -> tuple[int, ...]:
    if settings.kv_pool == "static":
        return blocks
    # A processor's pool grows without copying, so initial blocks would gain nothing.
    start = 0 if device.type == "cpu" else START_TOKENS // PAGE
    return tuple(min(most, start) for most in blocks)


def _notices(
    settings: ModelSettings, context: int, trained: int, *, is_budget: bool
) -> tuple[str, ...]:
    notices = context_notices(settings, context, trained, is_budget=is_budget)
    if settings.extra_buffers is None:
        return notices
    return (
        *notices,
        "extra_buffers is a setting of llama.cpp; the native runner has no such.",
    )
