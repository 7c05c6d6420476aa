"""Metal kernels compiled from their source for a processor, as a replacement for the result of
`torch.mps.compile_shader`.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hearth.kernels.cpu.build_library import compiler

_HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
_SHIM = Path(__file__).with_name("metal_on_cpu.h")
_FLAGS = ("-std=gnu2x", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wno-attributes", "-lm")
_KERNEL = re.compile(r"^kernel void (\w+)\(([^)]*)\)", re.MULTILINE)
_NEEDS = {"multiply": "PACKING", "attend": "PARTS", "finish_heads": "TURNED"}
"""The macro that must be defined for a kernel to exist."""


class ShaderOnCpu:
    """The kernels of `source`, which is the text for a GPU with the macros in front."""

    def __init__(self, source: str) -> None:
        assert source.startswith(_HEADER)
        made = [f'#include "{_SHIM}"\n', source.removeprefix(_HEADER)]
        self._buffers: dict[str, int] = {}
        for name, parameters in _KERNEL.findall(source):
            if f"#define {_NEEDS[name]} " not in source:
                continue
            self._buffers[name] = count = parameters.count(",")
            given = "".join(f"given[{at}], " for at in range(count))
            made.append(
                f"static void run_{name}(void **given, uint3 place) {{ {name}({given}place); }}\n"
                f"void start_{name}(void **given, const long *threads, const long *group)\n"
                f"{{ dispatch(run_{name}, given, threads, group); }}\n"
            )
        self._library = _compiled("".join(made))

    def __getattr__(self, name: str) -> Callable[..., None]:
        start = getattr(self._library, f"start_{name}")

        def call(
            *arguments: torch.Tensor | int | float,
            threads: Sequence[int],
            group_size: Sequence[int],
        ) -> None:
            assert len(arguments) == self._buffers[name] and group_size[0] == 32
            kept = [_pointer(one) for one in arguments]
            sizes = [(ctypes.c_long * 3)(*some) for some in (threads, group_size)]
            start((ctypes.c_void_p * len(kept))(*(address for _, address in kept)), *sizes)

        return call


def _pointer(given: torch.Tensor | int | float) -> tuple[object, int]:
    """The object that keeps the memory alive, and its address, as PyTorch binds arguments: int as
    `long`.
    """
    if isinstance(given, torch.Tensor):
        return given, given.data_ptr()
    number = ctypes.c_float(given) if isinstance(given, float) else ctypes.c_long(given)
    return number, ctypes.addressof(number)


@functools.cache
def _compiled(text: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(text)
        command = [*compiler(), str(source), "-o", str(library), *_FLAGS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))
