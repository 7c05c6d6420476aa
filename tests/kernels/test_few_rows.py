"""Products of few rows on NVIDIA cards. The CUDA C++ kernel is compiled for a processor here, where
each of its lanes is a coroutine (`support/card.h`), and for cards where their compiler is
installed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from card_on_processor import SHIM, SOURCE, OnProcessor, on_processor
from hearth.kernels.cuda import compiled, few_rows
from hearth.kernels.cuda.few_rows import Constants, Unnormalised, constants_of
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.cuda.planes import Planes, planes_of
from hearth.kernels.linear import cuda_linear, cuda_wide_linear
from product_cases import CASES, error, weight_of
from random_weights import random_weight

LIMITS = {torch.float16: 1e-6, torch.bfloat16: 3e-5}
ODD = {"FP8 and a shorter group"}
"""Cases with 544 inputs, which do not fill the last block."""
MOST_REGISTERS, MOST_SPILLED = 128, 64


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnProcessor:
    return on_processor(tmp_path, monkeypatch)


def some_rows(count: int, inputs: int, dtype: torch.dtype) -> Tensor:
    """[count, inputs], with gaps between rows, as in a slice."""
    x = torch.randn(count, 2 * inputs, generator=torch.Generator().manual_seed(0))
    return x.to(dtype)[:, :inputs]


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 3), (torch.bfloat16, 11)])
@pytest.mark.parametrize("case", CASES)
def test_products_are_near(case: str, dtype: torch.dtype, count: int, card: OnProcessor) -> None:
    weight = weight_of(case)
    matrix, x = TritonMatrix([weight]), some_rows(count, weight.inputs, dtype)
    found = matrix.matmul(x)
    assert error(found, x, weight.unpacked(torch.float32)) < LIMITS[dtype]
    assert len(card.calls) == 1 and found.isfinite().all()


def test_a_row_has_the_same_bits_among_others_and_in_float32(card: OnProcessor) -> None:
    weight = random_weight("Q4_K", 40, 1024)
    matrix, x = TritonMatrix([weight]), some_rows(16, 1024, torch.bfloat16)
    whole, wide = matrix.matmul(x), matrix.wide_matmul(x)
    assert wide.dtype == torch.float32 and torch.equal(wide.to(torch.bfloat16), whole)
    assert error(wide, x, weight.unpacked(torch.float32)) < 3e-5
    for count in (1, 8, 9):
        assert torch.equal(matrix.matmul(x[:count]), whole[:count])
        others = torch.cat([x[:count], torch.ones_like(x[count:])])
        assert torch.equal(matrix.matmul(others)[:count], whole[:count])
    assert {one["COLUMNS"] for one in card.calls} == {1, 2}


@pytest.mark.parametrize(
    ("case", "count", "inputs"),
    [
        *(("plain", 8, 1024), ("plain", 11, 1024), ("INT4 128 True", 3, 768)),
        *(("INT4 128 True", 11, 1024), ("Q4_K", 8, 1024), ("Q6_K", 11, 1024)),
        ("FP8 of a row", 3, 768),
    ],
)
def test_norms_gates_and_sums_are_part_of_products(
    case: str, count: int, inputs: int, card: OnProcessor
) -> None:
    """Compared with float64, with the same intermediate rounding."""
    part, weight = matrix_of(case, 96, inputs)
    x, gamma = (
        torch.randn(n, inputs, generator=torch.Generator().manual_seed(n)) for n in (count, 1)
    )
    unnormalised = (x * gamma).bfloat16()
    root = (x.double().square().mean(1, keepdim=True) + 1e-5).sqrt()
    given = Unnormalised(unnormalised, x.view(count, -1, 16).square().sum(2), 1e-5)
    wanted = unnormalised.double() / root @ weight.T

    out = torch.empty(count, 96, dtype=torch.bfloat16)
    few_rows.multiply(part, given, out)
    assert off(out, wanted) < 3e-5
    assert few_rows.can_gate(part)
    gate, up = wanted.chunk(2, 1)
    gated = few_rows.gated_product(part, given)
    assert off(gated, torch.nn.functional.silu(gate) * up) < 6e-5
    hidden = before = torch.randn(count, 200).bfloat16()[:, :96] * 30
    hidden = before.clone()
    norm = torch.rand(96), 1e-6
    found = few_rows.add_product(part, given, hidden, norm)
    assert {one["EARLY"] for one in card.calls} == {int(count == 8)}
    assert off(hidden, before.double() + wanted) < 3e-5
    assert found is not None and found.eps == 1e-6 and found.squares is not None
    assert torch.equal(found.rows, (hidden.float() * norm[0]).bfloat16())
    squares = hidden.float().square().sum(1)
    torch.testing.assert_close(found.squares.sum(1), squares, rtol=1e-6, atol=0)
    # A row has the same bits whatever other rows there are.
    alone = before[:1].clone()
    first = few_rows.add_product(part, first_row(given), alone, norm)
    assert first is not None and first.squares is not None
    assert torch.equal(alone, hidden[:1]) and torch.equal(first.rows, found.rows[:1])
    assert torch.equal(first.squares, found.squares[:1])
    assert torch.equal(few_rows.gated_product(part, first_row(given)), gated[:1])
    assert few_rows.add_product(part, unnormalised, before, None) is None


def first_row(some: Unnormalised) -> Unnormalised:
    assert some.squares is not None
    return Unnormalised(some.rows[:1], some.squares[:1], some.eps)


def matrix_of(case: str, outputs: int, inputs: int) -> tuple[Planes | Tensor, Tensor]:
    """The matrix in the kernel's format, and in float64."""
    if case == "plain":
        plain = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
        return plain, plain.double()
    weight = random_weight(case.split()[0], outputs, **{**CASES[case], "inputs": inputs})
    (part,) = TritonMatrix([weight]).parts
    return part, weight.unpacked(torch.float32).double()


def off(found: Tensor, wanted: Tensor) -> float:
    """The squared error of `found`, relative to the squares of `wanted`."""
    return float((found - wanted).square().sum() / wanted.square().sum())


@pytest.mark.parametrize("dtype", LIMITS)
def test_plain_matrices(dtype: torch.dtype, card: OnProcessor) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(37, 200, generator=generator).to(dtype)
    bias = torch.randn(37, generator=generator).to(dtype)
    for count in (1, 12):
        x = some_rows(count, 200, dtype)
        wide = cuda_wide_linear(x, weight)
        assert wide.dtype == torch.float32
        assert error(wide, x, weight.float()) < 1e-12
        found = cuda_linear(x[None], weight, bias)
        assert found.shape == (1, count, 37) and found.dtype == dtype
        torch.testing.assert_close(found[0], wide.to(dtype) + bias, rtol=1e-2, atol=1e-2)
    assert len(card.calls) == 4


def test_what_the_kernel_does_not_take_goes_to_others(card: OnProcessor) -> None:
    weight = random_weight("INT8", 16, 100, group=0)  # Rows of 100 numbers are not aligned.
    plain = weight.unpacked(torch.float16)
    x = torch.randn(3, 100).half()
    assert not few_rows.can_multiply(100, x)
    assert torch.equal(cuda_linear(x, plain), torch.nn.functional.linear(x, plain))
    aligned = torch.randn(17, 128).half()
    for some in (aligned, aligned[:3].float(), aligned[:0], aligned.flatten()[1:257].view(2, 128)):
        assert not few_rows.can_multiply(128, some)
    assert few_rows.can_multiply(128, aligned[:16])
    trained = torch.zeros(8, 128, dtype=torch.float16, requires_grad=True)
    assert cuda_linear(aligned[:2], trained).requires_grad
    assert not card.calls


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card")
def test_every_way_to_cut_a_product_up_is_measured(
    card: OnProcessor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SHIM.parents[2] / "benchmarks"))
    benchmark = importlib.import_module("few_rows_cuda")
    monkeypatch.setitem(benchmark.KINDS, "Q4_0", {})
    shapes = {"qkv": (64, 32), "out": (32, 32), "gate_up": (64, 32), "down": (32, 32)}
    monkeypatch.setattr(benchmark, "SHAPES", shapes)
    choices = {"TILES": (1, 2), "WARPS": (1,), "AHEAD": (1,), "LANES": (512,)}
    monkeypatch.setattr(benchmark, "CHOICES", choices)
    monkeypatch.setattr(benchmark, "copies", lambda tensor, nbytes: [tensor])

    class Untimed:
        device = torch.device("cpu")

        def seconds(self, call: Callable[[], object]) -> float:
            call()
            return 1e-6

    for kind in ("Q4_0", "bf16"):
        benchmark.measure(kind, 1, Untimed(), 1e9)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (4 * 3 + 1)
    assert lines[0].startswith("Q4_0, qkv, 1 rows: 1.0 µs") and "'TILES': 2" in "".join(lines)
    assert {one["TILES"] for one in card.calls} == {1, 2}


class Nvrtc:
    """Replaces NVRTC's library: it accepts every program except those with a mistake."""

    def __init__(self) -> None:
        self.options: list[bytes] = []
        self.destroyed = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return getattr(self, f"_{name}")

    def _nvrtcCreateProgram(self, program: Any, code: bytes, *rest: Any) -> int:  # noqa: N802
        assert b"few_rows(" in code
        return 0

    def _nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:  # noqa: N802
        self.options = list(options)[:count]
        return 6 if b"-DBITS=3" in self.options else 0

    def _size(self, program: Any, size: Any) -> int:
        size._obj.value = 5
        return 0

    def _text(self, program: Any, place: Any) -> int:
        place.raw = b"found"
        return 0

    def _nvrtcDestroyProgram(self, program: Any) -> int:  # noqa: N802
        self.destroyed += 1
        return 0

    _nvrtcGetCUBINSize = _nvrtcGetProgramLogSize = _size  # noqa: N815
    _nvrtcGetCUBIN = _nvrtcGetProgramLog = _text  # noqa: N815


def test_programs_are_compiled_for_the_card_and_mistakes_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, nvrtc = torch.device("cuda", 0), Nvrtc()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(compiled, "_nvrtc", lambda: nvrtc)
    assert compiled.compile_for(device, SOURCE, {"BITS": 4, "VALUE": "INT"}) == b"found"
    assert nvrtc.options == [
        *(b"--gpu-architecture=sm_89", b"--std=c++17", b"-DBITS=4", b"-DVALUE=INT")
    ]
    with pytest.raises(compiled.CompileError, match=r"few_rows\.cu: found"):
        compiled.compile_for(device, SOURCE, {"BITS": 3})
    assert nvrtc.destroyed == 2
    few_rows.is_there.cache_clear()
    loaded: list[bytes] = []
    monkeypatch.setattr(few_rows, "Kernel", lambda image, name, device: loaded.append(image))
    assert few_rows.is_there(device) and loaded == [b"found"]
    # Without NVRTC products are left to other kernels, and a line in the log gives the reason.
    few_rows.is_there.cache_clear()
    monkeypatch.setattr(nvrtc, "_nvrtcCompileProgram", lambda *about: 6)
    assert not few_rows.is_there(device) and "few_rows.cu: found" in caplog.text
    few_rows.is_there.cache_clear()
    monkeypatch.setenv("HEARTH_CUDA_KERNELS", "off")
    assert not few_rows.is_there(device)
    few_rows.is_there.cache_clear()


def variants() -> dict[str, Constants]:
    """The constants that the kernel is compiled with, for every kind of weights."""
    found: dict[str, Constants] = {}
    for case in CASES:
        weight = weight_of(case)
        part = planes_of(weight.packing, weight.weight, weight.scales, weight.zeros)
        for rows in (1, 16):
            made = constants_of(part, rows, torch.bfloat16, torch.bfloat16)
            found[f"{case}, {rows} rows"] = {**made, "WARPS": 16, "PROGRAMS": 1}
    weight = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    for rows in (1, 16):
        found[f"plain, {rows} rows"] = constants_of(weight, rows, weight.dtype, torch.float32)
    return found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="CUDA's compiler is not installed")
@pytest.mark.parametrize("case", ["Q4_K", "INT4 128 True", "FP8 of a row", "plain", "Q6_K"])
def test_registers_are_enough(case: str, tmp_path: Path) -> None:
    for arch, rows in ((80, 1), (90, 16)):
        constants = variants()[f"{case}, {rows} rows"]
        defines = [f"-D{name}={value}" for name, value in constants.items()]
        command = ["nvcc", "-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", "-w", *defines]
        made = subprocess.run(
            [*command, "-o", str(tmp_path / "made.cubin"), str(SOURCE)],
            capture_output=True,
            text=True,
            check=True,
        )
        registers = re.search(r"Used (\d+) registers", made.stderr)
        spilled = re.search(r"(\d+) bytes spill stores", made.stderr)
        assert registers is not None and spilled is not None
        assert int(registers[1]) <= MOST_REGISTERS and int(spilled[1]) <= MOST_SPILLED
