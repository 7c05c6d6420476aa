"""From `ModelSettings` and a file's header to parameters that llama.cpp accepts.

llama.cpp answers many wrong values with GGML_ASSERT, which ends the process; every value is checked
here first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hearth.backends.contract import KvType, ModelSettings
from hearth.backends.errors import DoesNotFit, InvalidParameter, UnsupportedModel

MAX_THREADS = 512
"""GGML_MAX_N_THREADS of ggml.h."""
MAX_CONTEXT = 1 << 24
MAX_CHUNK = 8192
UBATCH = 512
"""Tokens of one graph: llama.cpp's own default; a larger one costs memory and helps GPUs only."""
CELL_ALIGNMENT = 256
"""llama.cpp rounds a context up to a multiple of this."""
START_CELLS = 4096
"""First size of the pool: a context zeroes its whole pool when it is made, so a large one is slow
and greedy."""

_GGML_TYPE: dict[KvType, int] = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
_BLOCK: dict[KvType, int] = {"f32": 1, "f16": 1, "q4_0": 32, "q8_0": 32}

MEMORY_SHARE = 0.9
"""Of the available memory: the rest stays for everybody else."""
COMPUTE_BYTES = 256 << 20
"""Graph and output buffers of one context, held back from the pool: 512 rows of a wide model."""
GROWTH_FACTOR = 1.5
"""While the pool doubles, the new one and a copy of what the old one (half its size) held are there
together."""


class GgufFacts(Protocol):
    """What is read from a GGUF header (`hearth.quant.gguf.preflight`)."""

    @property
    def architecture(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    def value(self, key: str, default: Any = None) -> Any: ...
    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int: ...


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Everything that a llama.cpp context is made with, apart from threads and its current size."""

    context: int
    """Tokens one sequence may hold."""
    pool_tokens: int
    """Tokens all sequences together may hold; the context grows to this."""
    trained_context: int
    sequences: int
    chunk_tokens: int
    batch: int
    """n_batch: at least one token for each sequence, else output_reserve asserts."""
    ubatch: int
    kv_type: KvType
    ggml_type: int
    flash_attention: int
    """-1 the library decides, 0 off, 1 on."""
    kv_bytes_per_token: int
    notices: tuple[str, ...] = ()


def check_settings(settings: ModelSettings, max_sequences: int) -> None:
    """Refuse values that llama.cpp cannot take.

    Args:
        max_sequences: what `llama_max_parallel_sequences` says.

    Raises:
        InvalidParameter: with the name of the field and its bounds.
    """
    _in_range("context", settings.context, 1, MAX_CONTEXT)
    _in_range("threads", settings.threads, 1, MAX_THREADS)
    _in_range("batch_threads", settings.batch_threads, 1, MAX_THREADS)
    _in_range("gpu_layers", settings.gpu_layers, 0, 1 << 20)
    _in_range("chunk_tokens", settings.chunk_tokens, 1, MAX_CHUNK)
    _in_range("max_sessions", settings.max_sessions, 1, max_sequences)
    if settings.kv_type not in _GGML_TYPE:
        raise InvalidParameter(
            "kv_type",
            f"kv_type {settings.kv_type!r} is not known.",
            f"Use one of {', '.join(sorted(_GGML_TYPE))}.",
        )
    if _BLOCK[settings.kv_type] > 1 and settings.flash_attention is False:
        raise InvalidParameter(
            "flash_attention",
            f"A {settings.kv_type} KV cache needs flash attention, which is switched off.",
            "Leave flash_attention unset, or use kv_type f16 or f32.",
        )


def plan_context(
    settings: ModelSettings, facts: GgufFacts, *, weight_bytes: int, available_bytes: int
) -> ContextPlan:
    """Choose context length and pool size for a model on this machine.

    With context C and S sessions the pool holds up to C * S tokens, or what fits:
    `(available * 0.9 - weights - 256 MiB) / (kv_bytes_per_token * 1.5)`, see the constants above.

    Args:
        settings: already through `check_settings`.
        facts: header of the model.
        weight_bytes: size of the weights in memory.
        available_bytes: memory that can be taken without swapping, before the weights are loaded.

    Raises:
        InvalidParameter: the KV type does not divide the heads of this model.
        DoesNotFit: the weights, or the context that was asked for, need more memory than there is.
        UnsupportedModel: the file declares no context length and none was asked for.
    """
    _check_heads(settings, facts)
    trained = facts.context_length
    wanted = settings.context or trained
    if wanted < 1:
        raise UnsupportedModel(
            "The file does not say what context length the model was trained for.",
            "Set one with --ctx.",
        )
    kv_bytes = facts.kv_bytes_per_token(settings.kv_type, settings.kv_type)
    budget = int(available_bytes * MEMORY_SHARE) - weight_bytes - COMPUTE_BYTES
    fits = budget if kv_bytes == 0 else int(budget / (kv_bytes * GROWTH_FACTOR))
    fits = fits // CELL_ALIGNMENT * CELL_ALIGNMENT
    if fits < min(wanted, CELL_ALIGNMENT) or (settings.context is not None and fits < wanted):
        raise _does_not_fit(settings, wanted, max(fits, 0), kv_bytes, weight_bytes, available_bytes)
    context = min(wanted, fits)
    notices = []
    if context < wanted:
        notices.append(
            f"Context is {context:,} tokens, what fits in memory; "
            f"the model was trained for {trained:,}."
        )
    if settings.context is not None and 0 < trained < settings.context:
        notices.append(
            f"Context {settings.context:,} is beyond the {trained:,} tokens the model was trained "
            "for: expect poor answers past that."
        )
    batch = max(settings.chunk_tokens, settings.max_sessions)
    quantized = _BLOCK[settings.kv_type] > 1
    asked = {None: 1 if quantized else -1, False: 0, True: 1}[settings.flash_attention]
    return ContextPlan(
        context=context,
        pool_tokens=min(context * settings.max_sessions, fits),
        trained_context=trained,
        sequences=settings.max_sessions,
        chunk_tokens=settings.chunk_tokens,
        batch=batch,
        ubatch=min(batch, UBATCH),
        kv_type=settings.kv_type,
        ggml_type=_GGML_TYPE[settings.kv_type],
        flash_attention=asked,
        kv_bytes_per_token=kv_bytes,
        notices=tuple(notices),
    )


def gpu_layers(settings: ModelSettings, supports_gpu: bool) -> int:
    """Layers to offload; -1 is all of them.

    Raises:
        InvalidParameter: layers were asked for and this build has no GPU.
    """
    if settings.gpu_layers and not supports_gpu:
        raise InvalidParameter(
            "gpu_layers",
            f"{settings.gpu_layers} GPU layers were asked for, "
            "but this build of llama.cpp has no GPU.",
            "Use --gpu-layers auto, or install a Metal or CUDA build (`hearth doctor`).",
        )
    if settings.gpu_layers is not None:
        return settings.gpu_layers
    return -1 if supports_gpu else 0


def head_sizes(facts: GgufFacts) -> tuple[int, int]:
    """Key and value length of one attention head, from the header; (0, 0) where it does not say."""
    arch = facts.architecture
    heads = facts.value(f"{arch}.attention.head_count", 0)
    most = heads if isinstance(heads, int) else max(heads, default=0)  # one number, or one a layer
    width = facts.value(f"{arch}.embedding_length", 0)
    default = int(width) // int(most) if most else 0
    key = facts.value(f"{arch}.attention.key_length", default)
    value = facts.value(f"{arch}.attention.value_length", default)
    return int(key), int(value)


def _check_heads(settings: ModelSettings, facts: GgufFacts) -> None:
    block = _BLOCK[settings.kv_type]
    for name, size in zip(("key", "value"), head_sizes(facts), strict=True):
        if size % block:
            raise InvalidParameter(
                "kv_type",
                f"A {settings.kv_type} KV cache needs heads that are a multiple of {block}; "
                f"this model's {name} heads are {size}.",
                "Use kv_type f16 with this model.",
            )


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(
            name, f"{name} is {value!r}; it must be a whole number in {low}..{high}."
        )


def _does_not_fit(
    settings: ModelSettings, wanted: int, fits: int, kv_bytes: int, weights: int, available: int
) -> DoesNotFit:
    need = weights + COMPUTE_BYTES + int(wanted * kv_bytes * GROWTH_FACTOR)
    usable = int(available * MEMORY_SHARE)
    hint = "Use a smaller quantization of the model"
    if fits > 0:
        hint = f"Use --ctx {fits} or less"
        if settings.kv_type in ("f16", "f32"):
            hint += ", --kv-type q8_0"
        hint += ", or a smaller quantization"
    return DoesNotFit(
        f"A context of {wanted:,} tokens needs {need / 1e9:.2f} GB with the weights; "
        f"{usable / 1e9:.2f} GB are available.",
        f"{hint}, or close other programs.",
        needed_bytes=need,
        available_bytes=usable,
        context=wanted,
        fitting_context=fits,
    )
