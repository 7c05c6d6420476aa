"""Kernels in CUDA C++: compiled for the GPU in use by NVRTC, which comes with PyTorch's CUDA build,
and launched through the driver API, so that they can be started early (`turns`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

_EARLY: Final = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_NVRTC: Final = ("libnvrtc.so.13", "libnvrtc.so.12")


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("unused", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class CompileError(RuntimeError):
    """NVRTC or the driver is missing or reported an error."""


class Kernel:
    """A kernel on a device.

    Args:
        image: a cubin or PTX.
        name: name of its `extern "C"` function.
    """

    def __init__(self, image: bytes, name: str, device: torch.device) -> None:
        self._device = device
        self._starts_early = torch.cuda.get_device_capability(device) >= (9, 0)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # Ensures that a context exists.
            driver = _driver()
            if not hasattr(driver, "cuLaunchKernelEx"):
                raise CompileError("the driver is older than CUDA 11.8: it starts no kernel early")
            _check(driver.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
            status = driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode())
            _check(status, "cuModuleGetFunction")

    def __call__(self, programs: int, threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Start the kernel on the current stream.

        Args:
            arguments: tensors, passed by address, and integers, passed as `int`.
        """
        values: list[Any] = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one)
            for one in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        attribute = _Attribute(_EARLY, 0, 1)
        config = _Config(
            (programs, 1, 1),
            (threads, 1, 1),
            0,
            torch.cuda.current_stream(self._device).cuda_stream,
            ctypes.pointer(attribute),
            int(self._starts_early),
        )
        status = _driver().cuLaunchKernelEx(ctypes.byref(config), self._function, places, None)
        _check(status, "cuLaunchKernelEx")


def compile_for(device: torch.device, source: Path, constants: dict[str, int | str]) -> bytes:
    """Compile a source file to a cubin for `device`.

    Args:
        constants: macros to define.

    Raises:
        CompileError: NVRTC is missing or found an error.
    """
    nvrtc = _nvrtc()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    program = ctypes.c_void_p()
    code = source.read_bytes()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), code, source.name.encode(), 0, None, None
    )
    _check(status, "nvrtcCreateProgram")
    try:
        texts = [one.encode() for one in options]
        status = nvrtc.nvrtcCompileProgram(
            program, len(texts), (ctypes.c_char_p * len(texts))(*texts)
        )
        if status:
            log = _got(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise CompileError(f"{source.name}: {log.decode(errors='replace')}")
        return _got(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _got(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)), "NVRTC")
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer), "NVRTC")
    return buffer.raw


def _check(found: int, what: str) -> None:
    if found:
        raise CompileError(f"{what} failed with error {found}")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CompileError(f"the driver's library is missing: {error}") from error


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC: loaded already, on the system's path, or in an NVIDIA package next to PyTorch."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(one) for one in (spec.submodule_search_locations or ())] if spec else []
    places: list[str | Path] = [
        place for name in _NVRTC for place in (name, *_below(folders, name))
    ]
    for place in places:
        try:
            library = ctypes.CDLL(str(place))
            if isinstance(place, Path):  # NVRTC opens this library by name and might not find it.
                for needed in sorted(place.parent.glob("libnvrtc-builtins.so*")):
                    ctypes.CDLL(str(needed))
        except OSError:
            continue
        return library
    raise CompileError(f"NVRTC is missing: none of {', '.join(_NVRTC)} was found")


def _below(folders: Sequence[Path], name: str) -> list[Path]:
    return [place for folder in folders for place in sorted(folder.glob(f"*/lib/{name}"))]
