"""The CUDA C++ kernel for products of few rows, compiled for a processor, where each of its lanes
is a coroutine (`card.h`).
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from hearth.kernels.cuda import few_rows

SOURCE = Path(few_rows.__file__).with_suffix(".cu")
SHIM = Path(__file__).with_name("card.h")
Run = Callable[[int, int, Sequence[Tensor | int]], None]


class OnProcessor:
    """Compiles the kernel for each set of constants once, for all tests of a process, and runs it
    instead of a card.
    """

    _made: ClassVar[dict[str, ctypes.CDLL]] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls: list[dict[str, int | str]] = []

    def __call__(self, device: torch.device, constants: tuple[tuple[str, int | str], ...]) -> Run:
        lines = [f"#define {name} {value}" for name, value in constants]
        text = "\n".join([*lines, f'#include "{SHIM}"', f'#include "{SOURCE}"', ""])
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        if name not in self._made:
            source, library = (self._folder / f"{name}.{end}" for end in ("cpp", "so"))
            source.write_text(text)
            command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-o"]
            subprocess.run([*command, str(library), str(source)], check=True)
            self._made[name] = ctypes.CDLL(str(library))

        def run(programs: int, threads: int, arguments: Sequence[Tensor | int]) -> None:
            self.calls.append(dict(constants))
            tensors = [one for one in arguments if isinstance(one, Tensor)]
            numbers = [one for one in arguments if not isinstance(one, Tensor)]
            pointers = (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))
            values = (ctypes.c_int * len(numbers))(*numbers)
            self._made[name].launch(programs, threads, pointers, values)

        return run


def on_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> OnProcessor:
    """Replace the card by the processor, for tensors on the processor."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    made = OnProcessor(folder)
    monkeypatch.setattr(few_rows, "is_there", lambda device: True)
    monkeypatch.setattr(few_rows, "_kernel", made)
    return made
