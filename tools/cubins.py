"""Compile the Triton kernels for NVIDIA cards, without a card, and list their use of registers,
stack and shared memory.

    python tools/cubins.py [--arch 80 86 89 90 100 120] [--every] [--json]

Stack is in bytes and includes spilled registers. Compiles a sample, each variant for one
architecture in turn, or with --every each variant for all of them, which takes half an hour. The
exit code is 1 if a variant uses more stack than MOST_STACK, or more shared memory than any such
card has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hearth.kernels.cuda import codes as codes_on_cards
from hearth.kernels.cuda import decode_attention, draw, fused, products, prompt_attention
from hearth.kernels.cuda.attention import (
    DEEP,
    SHALLOW,
    block_rows,
    decode_constants,
    prompt_constants,
    prompt_launch,
    reads_packed,
)
from hearth.kernels.cuda.attention import ROOMY as ROOMY_CARDS
from hearth.kernels.cuda.matrix import (
    INT8_CONSTANTS,
    ROWS_TILE,
    TritonMatrix,
    constants,
    is_narrow,
    plane_arguments,
    tiles_for,
)
from random_weights import random_weight

ARCHITECTURES: Final = (80, 86, 89, 90, 100, 120)
MOST_STACK: Final = 72
"""Maximum bytes of stack per thread: eighteen registers."""
MOST_SHARED: Final = {80: 163, 90: 227, 100: 227}
"""Shared memory limit in KiB per program, by architecture; 99 on the others."""
ROOMY: Final = tuple(10 * major + minor for major, minor in ROOMY_CARDS if minor == 0)
ROOMY_SHARED: Final = 113
"""KiB per program if two programs have to fit on one multiprocessor of these cards."""
NAMES: Final = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.int8: "i8",
}
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
KINDS: Final[dict[str, dict[str, Any]]] = {
    **{packing: {} for packing in ("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4")},
    **{
        f"{packing} {group}{' zeros' * zeros}": {"group": group, "has_zeros": zeros}
        for packing in ("INT4", "INT8")
        for group, zeros in ((32, True), (128, False), (128, True), (0, True))
    },
    **{f"FP8 {group}": {"group": group, "scales": torch.float32} for group in (128, 0)},
    **{f"NF4 {group}": {"group": group, "scales": torch.float32} for group in (64, 0)},
}
"""Kinds of weights, with the arguments of `random_weight` that make them."""
SAMPLES: Final = ("Q4_K", "Q6_K", "FP8 128")


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel, with the types and constants that it is compiled for."""

    name: str
    kernel: Any
    arguments: dict[str, str | int]
    """Types by name: that of a pointer ("*fp16"), "i32" or "f32" for numbers."""
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3
    is_sample: bool = False
    since_blackwell: dict[str, Any] = field(default_factory=dict)
    """Constants that differ on cards of compute capability 10.0 and later."""
    is_roomy: bool = False
    """Only for the cards of `ROOMY`."""
    is_pair: bool = False
    """Two programs of it should fit on a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The resources that a variant needs on an architecture."""

    name: str
    arch: int
    registers: int
    """Registers per thread."""
    stack: int
    """Bytes of stack per thread."""
    shared: int
    """Bytes of shared memory per program."""


def product_variants() -> Iterator[Variant]:
    """Products of few, some and many rows, and of experts; and rows of an embedding."""
    others = (torch.bfloat16, 64, 0), (torch.float16, 1, 8), (torch.float32, 64, 0)
    for (kind, options), dtype in itertools.product(KINDS.items(), DTYPES):
        part = TritonMatrix([random_weight(kind.split()[0], 16, 512, **options)]).parts[0]
        planes = dict(zip(PLANES, map(_pointer, plane_arguments(part)), strict=True))
        for rows, experts in ((1, 0), (32, 0), (64, 0), (1, 8), (64, 128)):
            tiles, later = (
                tiles_for(rows, 4096, 1 if experts else 4096, dtype, is_narrow(part, capability))
                for capability in ((9, 0), (10, 0))
            )
            yield Variant(
                f"{kind}, {NAMES[dtype]}, {rows} rows{f', {experts} experts' if experts else ''}",
                products.product_kernel,
                {
                    **dict.fromkeys(("x", "out"), f"*{NAMES[dtype]}"),
                    **planes,
                    "partial": "*fp32",
                    "counters": "*i32",
                    "offsets": "*i64" if experts else "*i32",
                    **dict.fromkeys(PRODUCT_NUMBERS, "i32"),
                },
                {
                    **constants(part, dtype),
                    "IS_SPLIT": tiles.split > 1,
                    "EXPERTS": experts,
                    "EXPERT_LANES": max(experts, 1),
                    "BM": tiles.rows,
                    "BN": tiles.outputs,
                    "STAGES": tiles.stages,
                    "ON_CARD": True,
                },
                tiles.warps,
                tiles.stages,
                is_sample=(dtype, rows, experts)
                in (
                    (torch.bfloat16, 1, 0),
                    *(others if kind in SAMPLES else ()),
                ),
                since_blackwell={"BN": later.outputs, "IS_SPLIT": later.split > 1},
            )
        yield Variant(
            f"{kind}, {NAMES[dtype]}, rows of an embedding",
            products.rows_kernel,
            {
                "ids": "*i64",
                **planes,
                "out": f"*{NAMES[dtype]}",
                **dict.fromkeys(("first", "count", "N", "K"), "i32"),
            },
            {**constants(part, torch.float16), "HAS_IDS": True, "BN": ROWS_TILE},
            is_sample=dtype == torch.bfloat16 and kind in SAMPLES,
        )


def attention_variants() -> Iterator[Variant]:
    """Attention of single tokens and of prompts."""
    for (kind, shape), dtype in itertools.product(MODELS.items(), DTYPES):
        heads, kv_heads, size, page = shape
        name, is_packable = NAMES[dtype], reads_packed(size, dtype)
        for rows in ROWS if is_packable else ROWS[:1]:
            is_sample = (kind, dtype, rows) in (
                ("Llama 3 8B", torch.bfloat16, "plain"),
                ("Gemma 2 9B", torch.bfloat16, "plain"),
                ("gpt-oss 20B", torch.bfloat16, "q8_0"),
                ("gpt-oss 20B", torch.float16, "plain"),
                ("gpt-oss 20B", torch.float32, "q8_0"),
            )
            of = f"of {kind}, {name}, {rows} rows"
            strides = [
                f"{side}_{per}_stride" for side in SIDES for per in ("page", "token", "head")
            ]
            common = {
                **dict.fromkeys(("query", "out"), f"*{name}"),
                **row_pointers(rows, dtype),
                **dict.fromkeys(("scale", "softcap"), "fp32"),
                **dict.fromkeys(("query_stride", *strides, "table_stride"), "i32"),
                "tables": "*i32",
                "sinks": "*fp32",
            }
            kinds = {
                "HAS_CAP": kind == "Gemma 2 9B",
                "HAS_SINKS": kind == "gpt-oss 20B",
                "KEYS": rows,
                "VALUES": rows,
            }
            for is_deep in (False, True)[: 1 + (dtype.itemsize == 2)]:
                launch = dict(DEEP if is_deep else SHALLOW)
                yield Variant(
                    f"attention {of}{', all at once' if is_deep else ''}",
                    decode_attention.attention_kernel,
                    {
                        **common,
                        **dict.fromkeys(("begins", "ends", "counters"), "*i32"),
                        **dict.fromkeys(("sums", "peaks"), "*fp32"),
                        **dict.fromkeys(("chunk", "chunks"), "i32"),
                    },
                    {
                        **decode_constants(heads, kv_heads, size, page, dtype),
                        **kinds,
                        "AHEAD": launch["AHEAD"],
                    },
                    warps=4,
                    stages=launch["num_stages"],
                    is_sample=is_sample,
                    is_roomy=is_deep,
                    is_pair=is_deep,
                )
            sizes = {
                block_rows(*shape[:3], 512, dtype, is_packed=rows != "plain", is_roomy=is_roomy): (
                    is_roomy
                )
                for is_roomy in (True, False)
            }
            for most, is_roomy in sizes.items():
                launch = prompt_launch(most, size, dtype, is_packed=rows != "plain")
                fixed = prompt_constants(*shape, most, dtype, is_packed=rows != "plain")
                yield Variant(
                    f"prompts {of}, {most} together",
                    prompt_attention.prompt_kernel,
                    {**common, **dict.fromkeys(("texts", "blocks"), "*i32"), "window": "i32"},
                    {**fixed, **kinds},
                    warps=launch["num_warps"],
                    stages=launch["num_stages"],
                    is_sample=is_sample,
                    is_roomy=is_roomy,
                )


def fused_variants() -> Iterator[Variant]:
    """Norms and positions of heads, storing keys and values, gates."""
    for dtype in DTYPES:
        name = NAMES[dtype]
        is_sample = dtype == torch.bfloat16
        for added, rounds in itertools.product((True, False), repeat=2):
            yield Variant(
                f"norms, {name}{', of sums' if added else ''}{', rounded' if rounds else ''}",
                fused.norm_kernel,
                {
                    **dict.fromkeys(("hidden", "added"), f"*{name}"),
                    "out": "*u8" if rounds else f"*{name}",
                    **dict.fromkeys(("weight", "scales"), "*fp32"),
                    "eps": "fp32",
                },
                {"WIDTH": 4096, "LANES": 4096, "HAS_ADDED": added, "ROUNDS": rounds},
                warps=8,
                is_sample=is_sample and added,
            )
        yield Variant(
            f"gates, {name}, rounded",
            fused.rounded_gate_kernel,
            {"both": f"*{name}", "out": "*u8", "scales": "*fp32", "stride": "i32"},
            {"WIDTH": 14336, "LANES": 16384},
            warps=16,
            is_sample=is_sample,
        )
        for normed, turned in itertools.product((True, False), (128, 64, 0)):
            yield Variant(
                f"heads, {name}, {turned} turned{', normed' if normed else ''}",
                fused.heads_kernel,
                {
                    "heads": f"*{name}",
                    **dict.fromkeys(("query_weight", "key_weight", "cosine", "sine"), "*fp32"),
                    "eps": "fp32",
                    **dict.fromkeys(("tokens", "stride"), "i32"),
                },
                {
                    "QUERIES": 32,
                    "SIZE": 128,
                    "TURNED": turned,
                    "LANES": max(turned // 2, 1),
                    "REST_LANES": max(128 - turned, 1),
                    "HAS_NORMS": normed,
                    "TOKENS": 1,
                },
                warps=1,
                is_sample=is_sample and turned == 128,
            )
        strides = [f"{side}_{of}_stride" for side in SIDES for of in ("slot", "head")]
        for rows in ROWS:
            yield Variant(
                f"keys of {name} kept as {rows} rows",
                fused.store_kernel,
                {
                    "key_value": f"*{name}",
                    **row_pointers(rows, dtype),
                    "slots": "*i64",
                    **dict.fromkeys(("tokens", "stride", *strides), "i32"),
                    "most": "fp32",
                },
                {"HEADS": 8, "SIZE": 128, "LANES": 128, "KEYS": rows, "VALUES": rows, "TOKENS": 1},
                warps=1,
                is_sample=is_sample,
            )
            for tokens, warps in ((1, 1), (8, 4)):
                yield Variant(
                    f"heads, {name}, of {tokens} tokens, kept as {rows} rows",
                    fused.finish_and_store_kernel,
                    {
                        "heads": f"*{name}",
                        **dict.fromkeys(("query_weight", "key_weight", "cosine", "sine"), "*fp32"),
                        "eps": "fp32",
                        **row_pointers(rows, dtype),
                        "slots": "*i64",
                        **dict.fromkeys(("tokens", "stride", *strides), "i32"),
                        "most": "fp32",
                    },
                    {
                        "QUERIES": 32,
                        "HEADS": 8,
                        "SIZE": 128,
                        "TURNED": 128,
                        "LANES": 64,
                        "REST_LANES": 1,
                        "HEAD_LANES": 128,
                        "HAS_NORMS": True,
                        "KEYS": rows,
                        "VALUES": rows,
                        "TOKENS": tokens,
                    },
                    warps=warps,
                    is_sample=is_sample,
                )
        yield Variant(
            f"gates, {name}",
            fused.gate_kernel,
            {**dict.fromkeys(("both", "out"), f"*{name}"), "width": "i32", "stride": "i32"},
            {"LANES": 1024},
            is_sample=is_sample,
        )


def peak_variants() -> Iterator[Variant]:
    """The likeliest token of each row."""
    parts = {**dict.fromkeys(("peaks", "totals"), "*fp32"), "bests": "*i32"}
    numbers = dict.fromkeys(("width", "stride", "parts"), "i32")
    yield Variant(
        "peaks of parts of logits",
        fused.peaks_kernel,
        {"logits": "*fp32", **parts, **numbers},
        {"LANES": 4096},
        is_sample=True,
    )
    yield Variant(
        "peaks of logits",
        fused.row_peaks_kernel,
        {**parts, "out": "*fp32", **numbers},
        {"LANES": 32},
        warps=1,
        is_sample=True,
    )


def draw_variants() -> Iterator[Variant]:
    """Guesses of the tokens that the sampler will draw."""
    yield Variant(
        "tokens drawn from 1,024",
        draw.guess_kernel,
        {
            **dict.fromkeys(("values", "peaks"), "*fp32"),
            **dict.fromkeys(("ids", "about", "out"), "*i64"),
            "count": "i32",
        },
        {"LANES": 1024},
        warps=8,
        is_sample=True,
    )


def code_variants() -> Iterator[Variant]:
    """Activations rounded to codes, and products of int8 codes."""
    for dtype in DTYPES:
        name, is_sample = NAMES[dtype], dtype == torch.bfloat16
        for fp8, group in ((True, 0), (True, 128), (False, 0)):
            codes = "fp8" if fp8 else "int8"
            yield Variant(
                f"{name} rounded to {codes}, groups of {group}",
                codes_on_cards.rounding_kernel,
                {
                    "x": f"*{name}",
                    "codes": "*u8" if fp8 else "*i8",
                    "scales": "*fp32",
                    **dict.fromkeys(("M", "K", "x_stride"), "i32"),
                },
                {"GROUP": group, "LANES": group or 1024, "IS_FP8": fp8},
                warps=1 if group else 4,
                is_sample=is_sample,
            )
        for group in (0, 128):
            fixed = dict(INT8_CONSTANTS)
            warps, stages = fixed.pop("num_warps"), fixed.pop("num_stages")
            yield Variant(
                f"int8 by int8 to {name}, groups of {group}",
                codes_on_cards.int8_kernel,
                {
                    "x": "*i8",
                    "x_scales": "*fp32",
                    "codes": "*i8",
                    "scales": "*fp16",
                    "out": f"*{name}",
                    **dict.fromkeys(("M", "N", "K", "out_stride"), "i32"),
                },
                {"GROUP": group, **fixed},
                warps,
                stages,
                is_sample=is_sample,
            )


def row_pointers(rows: str, dtype: torch.dtype) -> dict[str, str]:
    """Pointer types of the pool's keys and values, by kind of row (`elementwise.sides_of`)."""
    kept = {"plain": NAMES[dtype], "fp8": "u8", "q8_0": "i8"}[rows]
    scales = "fp16" if rows == "q8_0" else kept
    return {
        **dict.fromkeys(SIDES_OF_POOL, f"*{kept}"),
        **{f"{side}_scales": f"*{scales}" for side in SIDES},
    }


SIDES: Final = ("key", "value")
SIDES_OF_POOL: Final = ("keys", "values")
ROWS: Final = ("plain", "fp8", "q8_0")
MODELS: Final = {
    "Llama 3 8B": (32, 8, 128, 256),
    "gpt-oss 20B": (64, 8, 64, 16),
    "Gemma 2 9B": (16, 8, 256, 16),
    "Phi-3 mini": (32, 32, 96, 256),
    "Qwen 2 7B": (28, 4, 128, 256),
}
"""(query heads, key heads, numbers per head, tokens per page)."""
PRODUCT_NUMBERS: Final = ("M", "N", "K", "x_stride", "out_stride", "groups", "split")
PLANES: Final = ("codes", "high", "scales", "zeros", "supers", "book")


def variants(*, every: bool) -> list[Variant]:
    """All variants, or a sample."""
    made = itertools.chain(
        product_variants(),
        code_variants(),
        attention_variants(),
        fused_variants(),
        peak_variants(),
        draw_variants(),
    )
    return [one for one in made if every or one.is_sample]


def compile_variant(variant: Variant, arch: int) -> Compiled:
    """Compile a variant for cards of compute capability `arch` / 10."""
    signature, fixed, attributes = {}, {}, {}
    # From Hopper on, kernels are launched early.
    constant = {**variant.constants, "EARLY": arch >= 90}
    if arch >= 100:
        constant |= variant.since_blackwell
    for place, name in enumerate(variant.kernel.arg_names):
        if name in constant:
            signature[name] = "constexpr"
            fixed[(place,)] = constant[name]
            continue
        signature[name] = str(variant.arguments[name])
        # As triton specializes such arguments by itself; numbers of rows may have any value.
        if name not in (
            "M",
            "groups",
            "split",
            "first",
            "count",
            "chunks",
            "scale",
            "softcap",
            "eps",
            "most",
            "window",
        ):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(variant.kernel, signature, fixed, attributes)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    registers, stack = resources(made.asm["cubin"])
    return Compiled(variant.name, arch, registers, stack, int(made.metadata.shared))


def is_too_heavy(variant: Variant, found: Compiled) -> bool:
    """Whether the variant exceeds the limits."""
    most = MOST_SHARED.get(found.arch, 99)
    if variant.is_pair:
        most = ROOMY_SHARED
    return found.stack > MOST_STACK or found.shared > most << 10


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread, from the `cuobjdump` of triton's wheel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = [re.search(rf"{name}:(\d+)", said) for name in ("REG", "STACK")]
    registers, stack = (int(one[1]) for one in numbers if one is not None)
    return registers, stack


def _pointer(tensor: Tensor) -> str:
    return f"*{NAMES[tensor.dtype]}"


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", help="all variants for these")
    parser.add_argument("--every", action="store_true", help="every variant")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    options = parser.parse_args()
    # Printed to stderr once per process, about a default that 3.10 changes.
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    is_heavy = False
    some = variants(every=options.every)
    if options.arch or options.every:
        every = itertools.product(some, options.arch or ARCHITECTURES)
        pairs = [(one, arch) for one, arch in every if not one.is_roomy or arch in ROOMY]
    else:
        pairs = [
            (one, arch if not one.is_roomy or arch in ROOMY else ROOMY[0])
            for one, arch in zip(some, itertools.cycle(ARCHITECTURES), strict=False)
        ]
    for variant, arch in pairs:
        compiled = compile_variant(variant, arch)
        is_heavy |= is_too_heavy(variant, compiled)
        if options.json:
            print(json.dumps(asdict(compiled)), flush=True)
        else:
            print(
                f"{compiled.name:44} sm_{arch:<4} {compiled.registers:3} registers"
                f" {compiled.stack:3} B stack {compiled.shared / 1024:5.1f} KiB shared",
                flush=True,
            )
    sys.exit(int(is_heavy))


if __name__ == "__main__":
    main()
