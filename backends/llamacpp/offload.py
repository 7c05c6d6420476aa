"""Which parts of a model llama.cpp puts on GPUs, and how much memory the GPUs have.

Not verified on hardware: tested with a library that claims to have a GPU.
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from typing import Any, Final

from hearth.backends.llamacpp.lib import Library
from hearth.quant.gguf.file import GgufFile

CPU, GPU, INTEGRATED_GPU = range(3)
"""ggml_backend_dev_type of ggml-backend.h."""
_EMBEDDING: Final = "token_embd."
_OUTPUT: Final = "output."
_BLOCK: Final = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the devices that can hold layers."""

    free_bytes: int
    """Of all devices together: llama.cpp gives each a share of the layers in proportion."""
    is_shared: bool
    """Whether it is the machine's memory, as for integrated GPUs and Apple's."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Which parts of a model are on GPUs, and which take memory of the machine.

    If the memory is shared, all parts take memory of the machine.
    """

    free_bytes: int
    """Free memory of the GPUs before the model is loaded."""
    weight_bytes: int
    """Bytes of weights on GPUs."""
    host_weight_bytes: int
    """Bytes of weights in memory of the machine; an embedding that is also the output matrix is in
    both."""
    kv_share: float
    """Share of keys, values and recurrent states on GPUs: those of a layer are with its weights."""
    host_kv_share: float
    """Share of keys, values and recurrent states in memory of the machine."""


def offload_of(header: GgufFile, layers: int, memory: DeviceMemory) -> Offload:
    """Where llama.cpp puts the weights of a model.

    Of the `layers` on GPUs, the output matrix is the first, followed by the last blocks. The
    embedding is never on a GPU (`load_tensors` in llama-model.cpp).

    Args:
        layers: as returned by `gpu_layers`, not 0; -1 for all.
    """
    blocks = header.integer(f"{header.architecture}.block_count")
    offloaded = blocks if layers < 0 else min(layers - 1, blocks)
    on_device = on_host = tied = 0
    for tensor in header.all_tensors:
        block = _BLOCK.match(tensor.name)
        if tensor.name.startswith(_EMBEDDING):
            tied, on_host = tensor.nbytes, on_host + tensor.nbytes
        elif block is not None and int(block[1]) < blocks - offloaded:
            on_host += tensor.nbytes
        else:
            on_device += tensor.nbytes
    if not any(tensor.name.startswith(_OUTPUT) for tensor in header.all_tensors):
        on_device += tied
    share = offloaded / blocks
    if memory.is_shared:
        on_host, host_share = sum(tensor.nbytes for tensor in header.all_tensors), 1.0
    else:
        host_share = 1 - share
    return Offload(memory.free_bytes, on_device, on_host, share, host_share)


def device_memory(library: Library) -> DeviceMemory | None:
    """Free memory of the GPUs that llama.cpp uses: integrated GPUs only if there are no others.

    None if there are no GPUs, or the library does not report their memory.
    """
    devices = devices_of(getattr(library.api, "_lib", None))
    discrete = [free for kind, free in devices if kind == GPU]
    integrated = [free for kind, free in devices if kind == INTEGRATED_GPU]
    free_bytes = sum(discrete or integrated)
    if not free_bytes:
        return None
    return DeviceMemory(free_bytes, is_shared=not discrete or sys.platform == "darwin")


def devices_of(functions: Any) -> list[tuple[int, int]]:
    """(type, free bytes) of all devices that ggml knows, including the processor.

    Empty if ggml's functions are not found, as on Windows, where ctypes does not search the
    libraries that llama.dll loads.

    Args:
        functions: libllama, loaded by ctypes.
    """
    names = [f"ggml_backend_dev_{name}" for name in ("count", "get", "type", "memory")]
    if not all(hasattr(functions, name) for name in names):
        return []
    count, get, type_of, memory_of = (getattr(functions, name) for name in names)
    get.restype = ctypes.c_void_p
    devices = []
    for index in range(count()):
        device = ctypes.c_void_p(get(index))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory_of(device, ctypes.byref(free), ctypes.byref(total))
        devices.append((int(type_of(device)), free.value))
    return devices
