"""How products with weights are computed on this machine: the table of `hearth doctor --kernels`.

The routes depend on the stored type, the device and the number of rows. Each is obtained from the
object that computes the product.

    python -P -m hearth.backends.native.routes
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from itertools import pairwise
from typing import Final

import torch

from hearth.backends.contract.models import ModelSettings
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.load import Numbers, choose_numbers
from hearth.backends.native.report import KernelReport, LayoutRoutes, Rows
from hearth.kernels import device as devices
from hearth.kernels.blocks import block_of
from hearth.kernels.cpu.build_library import is_current
from hearth.kernels.cpu.layouts import FORCE, LAYOUTS, SETS
from hearth.kernels.cpu.library import cpu_library
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.cuda.packings import NOT_RUN
from hearth.kernels.dequantize_codes import CODE_BITS, row_bytes_of
from hearth.kernels.linear import DTYPE_NAMES, Route
from hearth.kernels.metal.packings import NOT_RUN as NEVER_RUN
from hearth.kernels.packed import BlockMatrix, TiledMatrix, prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.stored import ELEMENT_BYTES, LOADED, StoredTensor

MOST_ROWS: Final = 1024
"""Products of more rows are computed like those of this many."""
_OUTPUTS, _INPUTS, _GROUP = 16, 256, 128
_HUGE_OUTPUTS: Final = 1 << 40
_CASES: Final = (
    ("by default", ModelSettings(), _OUTPUTS),
    ("with dtype f32 (--dtype f32)", ModelSettings(dtype="f32"), _OUTPUTS),
    ("where weights take most of the memory", ModelSettings(), _HUGE_OUTPUTS),
)


def make_kernel_report() -> KernelReport:
    """Make the report in this process."""
    library = cpu_library()
    here, absent = _devices()
    kinds = [
        *LAYOUTS,
        *sorted(LOADED - set(LAYOUTS), key=lambda kind: (kind in ELEMENT_BYTES, kind)),
    ]
    return KernelReport(
        "" if library is None else library.instructions,
        _reason(),
        os.environ.get(FORCE, ""),
        absent,
        tuple(route for device in here for kind in kinds for route in _of_layout(kind, device)),
    )


def _devices() -> tuple[list[torch.device], dict[str, str]]:
    here, absent = [torch.device("cpu")], {}
    best = devices.best_device()
    if best.type != "cpu":
        here.append(best)
    if best.type != "cuda":
        without = torch.version.cuda is None
        reason = "this PyTorch is built without CUDA" if without else "no card is found"
        absent["cuda"] = f"{reason}; its kernels are {NOT_RUN}"
    if not torch.backends.mps.is_available():
        absent["mps"] = f"no GPU of Apple is found; its kernels are {NEVER_RUN}"
    return here, absent


def _reason() -> str:
    """Why these kernels for processors are used, or none."""
    forced = os.environ.get(FORCE, "")
    if not is_current():
        return "they are not built, or from other sources: install a C compiler and run `make`"
    if forced and forced not in (*SETS, "off"):
        return f"{FORCE}={forced} is none of {', '.join(SETS)} and off"
    if forced in ("", "off"):
        return f"{FORCE}={forced}" if forced else "the best instructions of this processor"
    return f"{FORCE}={forced}" if cpu_library() else f"this processor has no {forced}, see {FORCE}"


def _of_layout(kind: str, device: torch.device) -> list[LayoutRoutes]:
    routes: list[LayoutRoutes] = []
    on_gpu = device.type != "cpu"
    for case, settings, outputs in _CASES:
        shape = (outputs, _INPUTS)
        numbers = choose_numbers(
            [StoredTensor("weight", shape, kind, outputs * _row_bytes(kind))],
            settings,
            device,
            free_bytes=devices.free_bytes(device) if on_gpu else available_bytes(),
            gpu_least_bytes=0 if on_gpu else None,
        )
        held = kind if kind in numbers.packed else DTYPE_NAMES[numbers.dtype]
        of_case = LayoutRoutes(kind, device.type, case, held, _rows(kind, numbers, device))
        if not any((one.held, one.rows) == (of_case.held, of_case.rows) for one in routes):
            routes.append(of_case)
    return routes


def _rows(kind: str, numbers: Numbers, device: torch.device) -> tuple[Rows, ...]:
    routes = _routes(kind, numbers, device)
    begins = [at for at in range(MOST_ROWS) if at == 0 or routes[at] != routes[at - 1]]
    return tuple(
        Rows(begin + 1, end, routes[begin].by, routes[begin].activations, routes[begin].reason)
        for begin, end in pairwise([*begins, None])
        if begin is not None
    )


def _routes(kind: str, numbers: Numbers, device: torch.device) -> list[Route]:
    """Routes for 1 to `MOST_ROWS` rows, from a small matrix prepared as in loading."""
    is_packed = kind in numbers.packed
    if is_packed:
        part = _zeros(kind).to(device)
    else:
        part = PackedWeight(torch.zeros((_OUTPUTS, _INPUTS), dtype=numbers.dtype, device=device))
    is_plain = not (is_packed or numbers.tiled)
    matrix = BlockMatrix(part) if is_plain else prepare([part], exact=numbers.exact)
    counts = range(1, MOST_ROWS + 1)
    if isinstance(matrix, TiledMatrix):
        return [matrix.route(rows) for rows in counts]
    assert isinstance(matrix, BlockMatrix | TritonMatrix)
    return [matrix.route(rows, numbers.compute_dtype) for rows in counts]


def _zeros(kind: str) -> PackedWeight:
    weight = torch.zeros((_OUTPUTS, _row_bytes(kind)), dtype=torch.uint8)
    if kind not in CODE_BITS:
        return PackedWeight(weight, kind)
    return PackedWeight(weight, kind, torch.ones((_OUTPUTS, _INPUTS // _GROUP)))


def _row_bytes(kind: str) -> int:
    if kind in ELEMENT_BYTES:
        return _INPUTS * ELEMENT_BYTES[kind]
    if kind in CODE_BITS:
        return row_bytes_of(kind, _INPUTS)
    elements, size = block_of(kind)
    return _INPUTS // elements * size


if __name__ == "__main__":
    print(json.dumps(asdict(make_kernel_report())))
