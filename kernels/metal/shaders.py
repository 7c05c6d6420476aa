"""Starts the kernels of `kernels.metal` through `torch.mps.compile_shader`. Each is compiled on
first use, for the dtypes and shapes of a model. Everything else on these GPUs is computed by
PyTorch's own operators.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hearth.kernels.cuda.attention import Seen
from hearth.kernels.dequantize_codes import CODE_BITS, group_of
from hearth.kernels.metal.packings import PACKINGS, is_left_out

FEW: Final = 4
"""Most rows that the kernel multiplies, which reads all weights again for each row."""
MOST_SIZE: Final = 256
"""Largest head size: a threadgroup has memory for eight heads in float32."""
_NAMES: Final = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
_HEADER: Final = "#include <metal_stdlib>\nusing namespace metal;\n"
_LANES: Final = 32
_PARTS: Final = 8
_OUTPUTS: Final = 4
_RUN: Final = 8


def compile_shader(source: str) -> Any:
    """Compile the kernels in `source`."""
    return torch.mps.compile_shader(_HEADER + source)


@functools.cache
def has_metal(device_type: str) -> bool:
    """Whether the kernels work on devices of that type: they are not disabled, and compute a known
    product correctly.
    """
    if device_type != "mps" or is_left_out():
        return False
    return torch.backends.mps.is_available() and multiplies_on(torch.device("mps"))


def multiplies_on(device: torch.device) -> bool:
    """Whether `device` computes a known product: some macOS release may not compile the kernels."""
    # Q4_0: the half-precision scale 1.0, then codes of 9, which have the value 1.
    weight = torch.full((5, 18), 0x99, dtype=torch.uint8)
    weight[:, 0], weight[:, 1] = 0x00, 0x3C
    try:
        x = torch.ones(2, 32, dtype=torch.float16, device=device)
        product = multiply(x, "Q4_0", weight.to(device))
    except (RuntimeError, SyntaxError):  # The latter is raised for a shader that does not compile.
        return False
    return bool((product == 32).all())


def can_multiply(packing: str, inputs: int, groups: int) -> bool:
    """Whether `multiply` supports rows of `inputs` numbers.

    Args:
        groups: scales of a row, for codes.
    """
    if packing not in PACKINGS:
        return False
    if packing not in CODE_BITS:
        return True
    return inputs % _RUN == 0 and group_of(packing, inputs, groups) % _RUN == 0


def multiply(
    x: Tensor,
    packing: str,
    codes: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
) -> Tensor:
    """x · weightᵀ for few rows, each of which reads all of the weights.

    Args:
        x: [rows, inputs], the last dimension contiguous, float32, float16 or bfloat16.
        packing: one for which `can_multiply` is true.
        codes: [outputs, bytes of a row] uint8; scales, zeros: as in
            `packed_weight.PackedWeight`.

    Returns:
        [rows, outputs] of the same dtype; sums are float32.
    """
    rows, inputs = x.shape
    outputs, row_bytes = codes.shape
    out = x.new_empty((rows, outputs))
    some = x if scales is None else scales.contiguous()
    library = _library(
        PACKING=packing,
        T=_NAMES[x.dtype],
        S=_NAMES[some.dtype],
        **({} if zeros is None else {"HAS_ZEROS": 1}),
    )
    library.multiply(
        x,
        codes.contiguous(),
        some,
        codes if zeros is None else zeros.contiguous(),
        out,
        *(outputs, inputs, x.stride(0), out.stride(0), row_bytes),
        inputs if scales is None else group_of(packing, inputs, scales.shape[-1]),
        threads=(_LANES, -(-outputs // _OUTPUTS), rows),
        group_size=(_LANES, 4, 1),
    )
    return out


def attend_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Seen,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Each token's attention over its own text, as `kernels.cuda.attention.attend_decode`, with
    keys and values of the query's dtype and the same strides, and heads of at most `MOST_SIZE`
    numbers.
    """
    tokens, heads, size = query.shape
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    out = query.new_empty((tokens, heads, size))
    library = _library(
        PARTS=_PARTS,
        SIZE=size,
        T=_NAMES[query.dtype],
        **({} if sinks is None else {"HAS_SINKS": 1}),
    )
    library.attend(
        query,
        keys,
        values,
        seen.tables,
        seen.begins,
        seen.ends,
        seen.ends if sinks is None else sinks.float(),
        out,
        *(float(scale), float(softcap), heads, heads // keys.shape[2]),
        query.stride(0),
        keys.shape[1],
        *keys.stride()[:3],
        seen.tables.stride(0),
        threads=(_LANES, _PARTS * heads, tokens),
        group_size=(_LANES, _PARTS, 1),
    )
    return out


def finish_heads(
    heads: Tensor,
    queries: int,
    norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor] | None,
) -> None:
    """Norm and rotary positions in place, as `kernels.cuda.elementwise.finish_heads`."""
    if norms is None and rotary is None:
        return
    tokens, count, size = heads.shape
    weights = (heads, heads, 0.0) if norms is None else norms
    cosine, sine = (heads, heads) if rotary is None else rotary
    library = _library(
        SIZE=size,
        T=_NAMES[heads.dtype],
        TURNED=0 if rotary is None else cosine.shape[-1],
        **({} if norms is None else {"HAS_NORMS": 1}),
    )
    library.finish_heads(
        heads,
        *weights[:2],
        *(cosine, sine, float(weights[2]), heads.stride(0), queries),
        threads=(_LANES, count, tokens),
        group_size=(_LANES, 1, 1),
    )


@functools.cache
def _library(**macros: str | int) -> Any:
    lines = [f"#define {name} {value}\n" for name, value in sorted(macros.items())]
    return compile_shader("".join(lines) + Path(__file__).with_name("kernels.metal").read_text())
