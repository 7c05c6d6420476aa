"""Converts `ModelSettings` and a file's header to parameters that llama.cpp accepts.

Many wrong values fail a GGML_ASSERT in llama.cpp, which ends the process, so every value is checked
here first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hearth.backends.contract import checks
from hearth.backends.contract.models import MAX_CONTEXT, KvPool, KvType, ModelSettings
from hearth.backends.engine.kv.manager import PART_TOKENS
from hearth.backends.errors import (
    DoesNotFit,
    InvalidParameter,
    UnsupportedModel,
    UnsupportedParameter,
)
from hearth.backends.llamacpp.facts import GgufFacts, integer
from hearth.backends.llamacpp.offload import Offload
from hearth.backends.llamacpp.recurrent import state_bytes
from hearth.backends.llamacpp.rope import UNCHANGED, RopeParams
from hearth.quant.gguf.file import ENCODERS

MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ of llama-cparams.h: most sequence ids of one context."""
UBATCH = 512
"""Most tokens of one graph: llama.cpp's own default; larger graphs cost memory and only help on
GPUs."""
PLAIN_UBATCH = 128
"""Most tokens of one graph without flash attention: each head then takes memory for the product of
every row with every cell of the pool."""
TILE = 16
"""On processors with AVX-512, ggml's matrix products over repacked weights take sixteen tokens at a
time, then four at a time, and the rest one by one, each at nearly the cost of four
(ggml-cpu/arch/x86/repack.cpp)."""
FLASH_TILE = 64
"""From this many tokens of one sequence on, flash attention on processors works in tiles and costs
as much per cell as attention without flash; with fewer tokens it costs several times as much
(`ggml_fa_tile_config` in ggml-cpu)."""
FLASH_DEPTH = 1024
"""After this many tokens, a whole flash tile takes no longer than `TILE` tokens outside of one."""
CELL_ALIGNMENT = 256
"""llama.cpp rounds a context up to a multiple of this."""
START_CELLS = 4096
"""Initial cells of a pool that grows: a new context zeroes its whole pool, so a large one is slow
and takes all its memory at once."""
KEPT_SEQUENCES = (16, 64)
"""Least and most ids for kept prefixes, in addition to running sequences: four for each session."""
KEPT_STATES = 4
"""Least ids for kept prefixes if each id takes a recurrent state; as many as sessions if more."""
MIN_OUTPUTS = 32
"""Least rows of logits that a step can have: scoring requests many for one sequence."""

_GGML_TYPE: dict[KvType, int] = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
_BLOCK: dict[KvType, int] = {"f32": 1, "f16": 1, "q4_0": 32, "q8_0": 32}

COMPUTE_BYTES = 256 << 20
"""Reserved for the graph and output buffers of one context: 512 rows of a wide model."""
GROWTH_FACTOR: dict[KvPool, float] = {"grow": 1.5, "static": 1.0}
"""Peak memory of a pool relative to its size: while it doubles, the new pool and a copy of the old
one (half its size) exist together (`larger_pool`)."""

PART_BYTES = 64 << 20
"""Most bytes of a part of a prefix: it is copied in a hundredth of a second."""


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Everything that a llama.cpp context needs, apart from threads and its current size."""

    context: int
    """Most tokens of one sequence; never more than `pool_tokens`."""
    pool_tokens: int
    """Most tokens of all sequences and kept prefixes together; the context grows to this."""
    first_tokens: int
    """Tokens that the first context holds."""
    kept_tokens: int
    """Most tokens that are kept only for prefixes."""
    slots: int
    """Sequences that run at the same time."""
    sequences: int
    """Ids that a context is made for (n_seq_max): running sequences and kept prefixes."""
    max_batch_tokens: int
    max_outputs: int
    """Most rows of logits in one step (n_outputs_max): at least one for each id, else
    output_reserve asserts."""
    batch: int
    """n_batch: at least one token for each id, else output_reserve asserts."""
    ubatch: int
    kv_type: KvType
    """Type of keys."""
    value_type: KvType
    flash_attention: int
    """-1 the library decides, 0 off, 1 on."""
    kv_bytes_per_token: int
    host_kv_bytes_per_token: int
    """The part in memory of the machine: less if layers are on GPUs."""
    state_bytes: int = 0
    """Bytes of the recurrent state of each id."""
    notices: tuple[str, ...] = ()
    kv_budget_bytes: int | None = None
    """Limit in bytes of keys, values and states, in the pool and offloaded, and of the compute
    buffers of other contexts; None if only the pool is limited."""
    text_tokens: int | None = None
    """Longest text to embed or rank that fits into the KV budget; None for `context`."""
    scratch_bytes_per_cell: int = 0
    """Memory of a graph for each cell of its context: the mask, and without flash attention the
    products."""
    least_cells: int = 0
    """Least cells of each context whose keys go into the pool: with longrope, llama.cpp chooses the
    factors by the cells of a context (`get_rope_factors` in llama-model.cpp), so the keys of a
    small context do not match those of a large one.
    """
    rope: RopeParams = UNCHANGED

    @property
    def part_tokens(self) -> int:
        """Tokens of a prefix that are offloaded or written to disk at once."""
        return max(1, min(PART_TOKENS, PART_BYTES // max(self.kv_bytes_per_token, 1)))

    @property
    def ggml_types(self) -> tuple[int, int]:
        """`ggml_type` of keys and of values."""
        return _GGML_TYPE[self.kv_type], _GGML_TYPE[self.value_type]


def check_settings(settings: ModelSettings, max_sequences: int) -> None:
    """Refuse values that llama.cpp or the engine cannot take.

    Args:
        max_sequences: the result of `llama_max_parallel_sequences`.

    Raises:
        InvalidParameter: a value is out of bounds or does not go with another one.
        UnsupportedParameter: the setting is one of the native runner.
    """
    checks.check_settings(settings, max_sequences)
    if settings.dtype is not None:
        raise UnsupportedParameter(
            "dtype",
            f"llama.cpp runs weights as the file has them, so there is no dtype {settings.dtype}.",
            "Leave dtype unset, or run the model with --backend native.",
        )
    if settings.device not in (None, "cpu"):
        raise UnsupportedParameter(
            "device",
            f"llama.cpp divides layers among its GPUs itself, so there is no device "
            f"{settings.device}.",
            "Leave device unset, or run the model with --backend native.",
        )
    if settings.deterministic:
        raise UnsupportedParameter(
            "deterministic",
            "llama.cpp does not promise that answers are independent of other requests.",
            "Run the model with --backend native, or in llama.cpp's exact mode: kv_type f32 "
            "(--kv-type) and flash_attention false.",
        )
    for param, kv_type in (("kv_type", settings.kv_type), ("kv_type_v", settings.value_type)):
        if kv_type not in _GGML_TYPE:
            raise UnsupportedParameter(
                param,
                f"llama.cpp keeps keys and values as {', '.join(_GGML_TYPE)}, not as {kv_type}.",
                f"Use {param} q8_0, or run the model with --backend native.",
            )
    if _BLOCK[settings.value_type] > 1 and settings.flash_attention is False:
        raise InvalidParameter(
            "flash_attention",
            f"Values of type {settings.value_type} need flash attention, which is switched off.",
            "Leave flash_attention unset, or use kv_type or kv_type_v f16 or f32.",
        )


def plan_context(
    settings: ModelSettings,
    facts: GgufFacts,
    *,
    weight_bytes: int,
    available_bytes: int,
    offload: Offload | None = None,
    rope: RopeParams = UNCHANGED,
) -> ContextPlan:
    """Choose context length and pool size for a model on this machine.

    With context C and S sessions the pool holds C * S tokens, or what fits, or what the KV budget
    allows, whichever is least. The budget covers the pool, a graph's scratch memory for its cells,
    and the copy while the pool grows. At other times, the memory of the copy is for offloaded
    prefixes, texts and background prefill. If a requested context only fits without a copy, the
    pool gets its full size at once. In whole blocks of 256 cells, the number of cells that fit is
    `(available * memory_fraction - weights - recurrent states - 256 MiB) / (kv_bytes * factor)`.
    The factor is 1.5 for a pool that grows and 1 for a static one. Without flash attention a cell
    also takes its share of the graph's scratch buffer. At most half of the pool is kept for
    prefixes without a running sequence.

    If layers are on GPUs, what fits there is computed in the same way from what these layers take,
    and the lesser of both numbers counts. The factor is 1 for GPUs, because a growing pool is
    copied to memory of the machine and freed before the larger one is made.

    Args:
        settings: already checked by `check_settings`.
        facts: header of the model.
        weight_bytes: size of the weights in memory.
        available_bytes: memory that can be taken without swapping, before the weights are loaded.
        offload: what is on GPUs; None if nothing is, or if nothing is known about them.
        rope: from `rope_params`.

    Raises:
        InvalidParameter: the size of the model's heads is not a multiple of the KV type's block.
        DoesNotFit: the weights or the requested context need more memory than is available, or more
            than the KV budget; both numbers are in the message and in `data`.
        UnsupportedModel: the file declares no context length and none was requested.
    """
    is_encoder = facts.architecture in ENCODERS
    if not is_encoder:
        _check_heads(settings, facts)
    trained = rope.context or facts.context_length
    wanted = settings.context or trained
    if wanted < 1:
        raise UnsupportedModel(
            "The file does not say what context length the model was trained for.",
            "Set the context (--ctx).",
        )
    slots = settings.max_sessions
    a_state = state_bytes(facts)
    sequences = _sequences(slots, a_state, settings.kv_budget_bytes)
    batch = max(settings.max_batch_tokens, sequences)
    plain = settings.flash_attention is False
    ubatch = min(batch, PLAIN_UBATCH if plain else UBATCH)
    states = a_state * sequences
    token = facts.kv_bytes_per_token(settings.kv_type, settings.value_type)
    scratch = _scratch_bytes_per_cell(ubatch, head_count(facts), plain=plain)

    def memory_of(
        free: int, weights: int, share: float, copied: float, *, is_on_gpus: bool
    ) -> _Memory:
        """Memory for `share` of keys, values and states, and while the pool grows, for a copy.

        The copy takes `copied` times the size of all keys and values.
        """
        return _Memory(
            usable=int(free * settings.memory_fraction),
            fixed=weights + int(states * share) + COMPUTE_BYTES,
            cell=token * (share + copied) + (scratch if share and plain else 0) if token else 0.0,
            is_on_gpus=is_on_gpus,
        )

    on_host = weight_bytes if offload is None else offload.host_weight_bytes
    host_share = 1.0 if offload is None else offload.host_kv_share
    copied = GROWTH_FACTOR[settings.kv_pool] - 1
    memories = [memory_of(available_bytes, on_host, host_share, copied, is_on_gpus=False)]
    if offload is not None:
        free, weights = offload.free_bytes, offload.weight_bytes
        memories.append(memory_of(free, weights, offload.kv_share, 0.0, is_on_gpus=True))
    fits, memory = min(
        ((memory.tokens(most=wanted * slots), memory) for memory in memories),
        key=lambda pair: pair[0],
    )
    if fits == 0 or (settings.context is not None and fits < wanted):
        raise _does_not_fit(settings, wanted, fits, memory)
    # A memory without a cost per token (recurrent) need not grow.
    grows = settings.kv_pool == "grow" and token > 0
    allowed = _allowed_by_budget(settings, states, token, scratch, wanted, grows=grows)
    if grows and allowed < (settings.context or 0):
        grows = False
        allowed = _allowed_by_budget(settings, states, token, scratch, wanted, grows=False)
    context = min(wanted, fits, allowed)
    pool_tokens = min(context * slots, fits, allowed)
    is_quantized = _BLOCK[settings.value_type] > 1
    return ContextPlan(
        context=context,
        pool_tokens=pool_tokens,
        first_tokens=START_CELLS if grows and pool_tokens >= 2 * START_CELLS else pool_tokens,
        kept_tokens=pool_tokens // 2,
        slots=slots,
        sequences=sequences,
        max_batch_tokens=settings.max_batch_tokens,
        max_outputs=max(sequences, MIN_OUTPUTS, settings.outputs(_vocabulary(facts))),
        batch=batch,
        ubatch=ubatch,
        kv_type=settings.kv_type,
        value_type=settings.value_type,
        flash_attention={None: 1 if is_quantized else -1, False: 0, True: 1}[
            settings.flash_attention
        ],
        kv_bytes_per_token=token,
        host_kv_bytes_per_token=int(token * host_share),
        state_bytes=a_state,
        notices=_notices(
            settings, context, trained, is_budget=allowed < fits, is_encoder=is_encoder
        ),
        kv_budget_bytes=settings.kv_budget_bytes,
        text_tokens=_text_tokens(settings, states + pool_tokens * token, token) if grows else None,
        scratch_bytes_per_cell=scratch,
        rope=rope,
    )


def larger_pool(cells: int, wanted: int, most: int) -> int:
    """Size of the next pool after one of `cells` cells, with at least `wanted` cells.

    `wanted` is more than `cells`. The pool doubles, and has half of `most` cells before it has
    `most`, so that no copy is larger than half of the pool that it goes into.
    """
    size, half = max(wanted, 2 * cells), -(-most // (2 * CELL_ALIGNMENT)) * CELL_ALIGNMENT
    if size < half:
        return size
    return half if max(wanted, 3 * cells // 2) <= half else most


def gpu_layers(settings: ModelSettings, supports_gpu: bool) -> int:
    """Layers to put on GPUs; -1 for all of them.

    Raises:
        InvalidParameter: layers were requested but this build has no GPU.
    """
    if settings.gpu_layers and not supports_gpu:
        raise InvalidParameter(
            "gpu_layers",
            f"{settings.gpu_layers} GPU layers were asked for, "
            "but this build of llama.cpp has no GPU.",
            "Set gpu_layers to auto (--gpu-layers), or install a Metal or CUDA build "
            "(`hearth doctor`).",
        )
    if settings.is_on_processor:
        return 0
    if settings.gpu_layers is not None:
        return settings.gpu_layers
    return -1 if supports_gpu else 0


def head_count(facts: GgufFacts) -> int:
    """Query heads of the layer with the most, from the header; 0 if absent."""
    return integer(facts, "attention.head_count")


def head_sizes(facts: GgufFacts) -> tuple[int, int]:
    """Key and value length of one attention head, from the header; (0, 0) if absent."""
    most = head_count(facts)
    default = integer(facts, "embedding_length") // most if most else 0
    return (
        integer(facts, "attention.key_length", default),
        integer(facts, "attention.value_length", default),
    )


def _vocabulary(facts: GgufFacts) -> int:
    """Size of the vocabulary; at least 1."""
    return max(1, len(facts.value("tokenizer.ggml.tokens", ())))


def _check_heads(settings: ModelSettings, facts: GgufFacts) -> None:
    types = (("kv_type", "key", settings.kv_type), ("kv_type_v", "value", settings.value_type))
    for (param, name, kv_type), size in zip(types, head_sizes(facts), strict=True):
        block = _BLOCK[kv_type]
        if size % block:
            raise InvalidParameter(
                param,
                f"A {kv_type} KV cache needs heads that are a multiple of {block}; "
                f"this model's {name} heads are {size}.",
                f"Use {param} f16 with this model.",
            )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of the machine or of its GPUs, and how much of it a model takes, in bytes."""

    usable: int
    fixed: int
    """Weights, recurrent states and buffers."""
    cell: float
    """Bytes of each cell of the pool, while that grows."""
    is_on_gpus: bool = False

    def tokens(self, most: int) -> int:
        """Cells that there is room for, in whole blocks.

        This is `most` in whole blocks if cells cost nothing, and 0 if not even `fixed` fits.
        """
        room = self.usable - self.fixed
        if room < 0:
            return 0
        if self.cell == 0:
            return math.ceil(most / CELL_ALIGNMENT) * CELL_ALIGNMENT
        return _whole_blocks(int(room / self.cell))

    def bytes_of(self, tokens: int) -> int:
        """Bytes for a pool of `tokens` cells and everything else."""
        cells = math.ceil(tokens / CELL_ALIGNMENT) * CELL_ALIGNMENT
        return self.fixed + int(cells * self.cell)


def _whole_blocks(cells: int) -> int:
    """`cells` rounded down to a multiple of `CELL_ALIGNMENT`."""
    return cells // CELL_ALIGNMENT * CELL_ALIGNMENT


def _sequences(slots: int, a_state: int, budget: int | None) -> int:
    """Ids for running sequences and kept prefixes; states take at most half of the budget."""
    least, most = KEPT_SEQUENCES
    wanted = slots + min(most, max(least, 4 * slots))
    if a_state:
        wanted = slots + max(KEPT_STATES, slots)
        if budget is not None:
            wanted = max(slots, min(wanted, budget // 2 // a_state))
    return min(wanted, MAX_SEQUENCES)


def _scratch_bytes_per_cell(ubatch: int, heads: int, *, plain: bool) -> int:
    """Bytes per cell: an f16 mask with flash attention, else an f32 mask and the products."""
    return 4 * ubatch * (heads + 1) if plain else 2 * ubatch


def _allowed_by_budget(
    settings: ModelSettings, states: int, token: int, scratch: int, wanted: int, *, grows: bool
) -> int:
    """Cells that the KV budget allows, in whole blocks.

    If the pool `grows`, the budget must cover it with either the graph's scratch memory or the
    copy, whichever is more, because nothing is computed while it grows. (The scratch memory of a
    pool that has its full size when the model is loaded is allocated then.)

    Raises:
        DoesNotFit: not even one block fits, or fewer cells than the requested context.
    """
    budget = settings.kv_budget_bytes
    if budget is None:
        return MAX_CONTEXT * MAX_SEQUENCES
    asked = settings.context or CELL_ALIGNMENT
    need = states + math.ceil(asked / CELL_ALIGNMENT) * CELL_ALIGNMENT * token
    if need > budget:
        what = "This context" if settings.context else "The smallest pool"
        raise DoesNotFit(
            f"{what}, {asked:,} tokens, needs {need:,} bytes for keys and values; the KV budget "
            f"is {budget:,} bytes.",
            f"Set kv_budget to {need} or more (--kv-budget), or a smaller context (--ctx) or "
            "kv_type (--kv-type).",
            needed_bytes=need,
            available_bytes=budget,
            context=wanted,
        )
    if token == 0:
        return MAX_CONTEXT * MAX_SEQUENCES
    left = budget - states
    cells = _whole_blocks(int(left / (token * GROWTH_FACTOR["grow"] if grows else token)))
    if grows and cells >= 2 * START_CELLS:
        most = _whole_blocks(left // (token + scratch))
        cells = min(cells, max(most, 2 * START_CELLS - CELL_ALIGNMENT))
    return max(cells, CELL_ALIGNMENT)


def _text_tokens(settings: ModelSettings, pool_bytes: int, token: int) -> int | None:
    """Cells for a text in the part of the KV budget that the pool leaves.

    Half of this part is for the compute buffers of texts.
    """
    budget = settings.kv_budget_bytes
    if budget is None:
        return None
    return max(_whole_blocks((budget - pool_bytes) // (2 * token)), CELL_ALIGNMENT)


def _notices(
    settings: ModelSettings, context: int, trained: int, *, is_budget: bool, is_encoder: bool
) -> tuple[str, ...]:
    if is_encoder and settings.context is not None and 0 < trained < settings.context:
        return (
            f"Texts can have {trained:,} tokens, not {settings.context:,}: the model was trained "
            "for that many and is computed with no more.",
        )
    return checks.context_notices(settings, context, trained, is_budget=is_budget)


def _does_not_fit(settings: ModelSettings, wanted: int, fits: int, memory: _Memory) -> DoesNotFit:
    need, usable = memory.bytes_of(wanted), memory.usable
    hint = "Use a smaller quantization of the model"
    if fits > 0:
        hint = f"Set the context to {fits} or less (--ctx {fits})"
        if settings.kv_types in ("f16", "f32"):
            hint += ", or kv_type to q8_0 (--kv-type)"
        hint += ", or a smaller quantization"
    where = ""
    if memory.is_on_gpus:
        hint += ", or fewer gpu_layers (--gpu-layers)"
        where = " of the GPU's memory"
    return DoesNotFit(
        f"A context of {wanted:,} tokens needs {need / 1e9:.2f} GB{where} with the weights; "
        f"{usable / 1e9:.2f} GB are available.",
        f"{hint}, or close other programs.",
        needed_bytes=need,
        available_bytes=usable,
        context=wanted,
        fitting_context=fits,
    )
