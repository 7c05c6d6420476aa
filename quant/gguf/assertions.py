"""Checks of what llama.cpp asserts for individual architectures when it loads a model or builds its
first graph. A failed assertion aborts the process.

Source: `load_arch_hparams`, `load_arch_tensors` and the graphs in llama.cpp's
`src/models/<architecture>.cpp`, and `rope` in `ggml-cpu/ops.cpp`.
"""

from __future__ import annotations

from math import inf
from typing import Final

from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.hparams import HyperParameters
from hearth.quant.gguf.values import NumberArray

_WHOLE_HEAD_ROPE: Final = frozenset(
    """
    apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek dots1
    dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon granite granite_swa granitemoe
    graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llada
    llada-moe llama-embed llama4 maincoder mellum minicpm olmo olmo2 olmoe orion paddleocr
    pangu-embedded plamo qwen2moe qwen2vl qwen3moe qwen3vl qwen3vlmoe rnd1 seed_oss smallthinker
    smollm3 starcoder2 talkie xverse
    """.split()
)
"""`n_embd_head == n_rot`: RoPE rotates whole heads."""
_EQUAL_HEADS: Final = _WHOLE_HEAD_ROPE | frozenset(
    """
    afmoe bailingmoe2 bert bitnet bloom chatglm cohere2 command-r deepseek4 eurobert glm4 glm4moe
    gpt2 gptneox granitehybrid jais jina-bert-v2 jina-bert-v3 laguna minimax-01 minimax-m2
    minimax-m3 modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert
    nomic-bert nomic-bert-moe openelm phi2 phi3 phimoe qwen qwen35 qwen35moe qwen3next qwen4exp
    refact spark2_5 stablelm starcoder
    """.split()
)
"""`n_embd_head_k == n_embd_head_v`: key and value heads have the same length."""
_EXPERTS: Final = frozenset({"bailingmoe2", "glm4moe", "grovemoe", "llada-moe", "smallthinker"})
"""`n_expert > 0`."""
_PARTLY_ROTATED: Final = frozenset({"deepseek2", "hy_v4", "mistral4"})
"""`n_embd_head_qk_nope >= 1`: part of a head is not rotated."""
_SECTIONED_ROPE: Final = frozenset(
    "paddleocr qwen2vl qwen35 qwen35moe qwen3tts qwen3vl qwen3vlmoe qwen4exp".split()
)
"""At least one of the first three RoPE sections is not empty."""
_POSITIVE: Final = {
    "grovemoe": ("experts_per_group",),
    "hrm_text": ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"),
    "minimax-m3": ("attention.indexer.block_size",),
    "nanbeige": ("num_loops",),
}
"""Keys whose value must not be 0 if present."""
_OF_WIDTH: Final = {
    "gemma-embedding": (("dense_2_feat_in", 1), ("dense_3_feat_out", 1)),
    "granitehybrid": (("ssm.inner_size", 2),),
    "jamba": (("ssm.inner_size", 2),),
}
"""Keys whose value, if present, must be the embedding length times a factor, and that factor. With
a factor of 1, 0 is allowed too."""


def check_assertions(file: GgufFile, params: HyperParameters) -> None:
    """Refuse models that llama.cpp would abort on.

    Raises:
        CorruptFile: names the key, its value and the violated rule.
    """
    arch = params.architecture
    if arch in _EXPERTS and not params.experts:
        raise _wrong(file, "expert_count", 0, "a mixture of experts has at least 1")
    for key, value in file.metadata.items():
        if key.endswith("epsilon") and isinstance(value, float) and not 0 <= value < inf:
            raise corrupt(file.path, f"key '{key}'", f"{value}, must be a finite number from 0")
    _check_heads(file, params)
    if arch in _SECTIONED_ROPE:
        _check_sections(file)
    for name in _POSITIVE.get(arch, ()):
        if file.integer(f"{arch}.{name}", 1) < 1:
            raise _wrong(file, name, 0, "must be at least 1")
    for name, factor in _OF_WIDTH.get(arch, ()):
        width = factor * params.embedding_length
        value = file.integer(f"{arch}.{name}", width)
        if value not in (0 if factor == 1 else width, width):
            raise _wrong(file, name, value, f"must be {width:,} for this embedding length")
    if arch == "hrm_text":
        _check_stacks(file, params)
    if arch == "jina-bert-v2":
        _check_jina_layers(file, params)


def _check_heads(file: GgufFile, params: HyperParameters) -> None:
    """Check the heads of layers without a window and, if windows are declared, of layers with one,
    which may have different heads (`*_swa`): only the architecture's code knows the kind of the
    first layer.
    """
    arch = params.architecture
    if not params.heads[0]:
        return
    heads = (params.key_length, params.value_length, params.rope_dims)
    _check_head(file, arch, *heads)
    if f"{arch}.attention.sliding_window" in file.metadata:
        names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        key, value, rope = (
            file.integer(f"{arch}.{name}_swa", default)
            for name, default in zip(names, heads, strict=True)
        )
        _check_head(file, arch, key, value, rope, "_swa")


def _check_head(
    file: GgufFile, arch: str, key: int, value: int, rope: int, suffix: str = ""
) -> None:
    values, dimensions = f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"
    if arch in _EQUAL_HEADS and key != value:
        raise _wrong(file, values, value, f"must be the key length, {key:,}")
    if arch in _WHOLE_HEAD_ROPE and rope != key:
        raise _wrong(file, dimensions, rope, f"must be the head length, {key:,}")
    if arch in _WHOLE_HEAD_ROPE | _SECTIONED_ROPE and (rope % 2 or rope > key):
        raise _wrong(file, dimensions, rope, f"must be even and at most {key:,}")
    if arch in _PARTLY_ROTATED:
        whole = file.integer(f"{arch}.attention.key_length_mla", key) or key
        if whole <= rope:
            raise _wrong(file, dimensions, rope, f"must be less than {whole:,}")


def _check_sections(file: GgufFile) -> None:
    name = "rope.dimension_sections"
    value = file.value(f"{file.architecture}.{name}")
    sections = list(value)[:3] if isinstance(value, NumberArray) else [value or 0]
    if not any(section > 0 for section in sections):
        shown = sections if isinstance(value, NumberArray) else "missing"
        raise _wrong(file, name, shown, "one of the first three must be at least 1")


def _check_stacks(file: GgufFile, params: HyperParameters) -> None:
    stack, high, low = (file.integer(f"hrm_text.{name}", 1) for name in _POSITIVE["hrm_text"])
    layers = stack * high * (low + 1)
    if params.layers != layers:
        raise _wrong(file, "block_count", params.layers, f"must be {layers:,} for its stacks")


def _check_jina_layers(file: GgufFile, params: HyperParameters) -> None:
    widths = {tensor.name: tensor.shape[-1] for tensor in file.all_tensors}
    for layer, width in enumerate(params.feed_forward):
        name = f"blk.{layer}.ffn_up.weight"
        outputs = widths.get(name, width)
        if outputs not in (width, 2 * width):
            raise corrupt(
                file.path,
                f"tensor {quoted(name)} shape",
                f"{outputs:,} outputs, must be {width:,} or {2 * width:,}",
            )


def _wrong(file: GgufFile, name: str, found: object, rule: str) -> Exception:
    shown = f"{found:,}" if isinstance(found, int) else str(found)
    return corrupt(file.path, f"key '{file.architecture}.{name}'", f"{shown}, {rule}")
