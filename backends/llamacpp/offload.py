"""What of a model llama.cpp puts on GPUs, and how much memory those have. Not verified on hardware:
tested with a library that says that it has a GPU.
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
    """Memory of the devices that layers can be offloaded to."""

    free_bytes: int
    """Of all of them together: llama.cpp gives each as many layers as its share of this."""
    is_shared: bool
    """It is memory of the machine, as that of integrated GPUs and Apple's is."""


@dataclass(frozen=True, slots=True)
class Offload:
    """What of a model is on GPUs, and what takes memory of the machine: all of it where that is
    shared.
    """

    free_bytes: int
    """Of the GPUs, before the model is loaded."""
    weight_bytes: int
    """On GPUs."""
    host_weight_bytes: int
    """In memory of the machine; an embedding that is the output matrix too is in both."""
    kv_share: float
    """Of keys, values and recurrent states on GPUs: those of a layer are where its weights are."""
    host_kv_share: float
    """Of these in memory of the machine."""


def offload_of(header: GgufFile, layers: int, memory: DeviceMemory) -> Offload:
    """Where llama.cpp puts the weights of a model: the output matrix is the first of the `layers`
    that go to a GPU, then come the last blocks, and the embedding never does (`load_tensors` in
    llama-model.cpp).

    Args:
        layers: as `gpu_layers` gives them, not 0; -1 is all.
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
    """What is free on the GPUs that llama.cpp uses: integrated ones only where there are no others.
    None where there are none, or the library does not say.
    """
    devices = devices_of(getattr(library.api, "_lib", None))
    discrete = [free for kind, free in devices if kind == GPU]
    integrated = [free for kind, free in devices if kind == INTEGRATED_GPU]
    free_bytes = sum(discrete or integrated)
    if not free_bytes:
        return None
    return DeviceMemory(free_bytes, is_shared=not discrete or sys.platform == "darwin")


def devices_of(functions: Any) -> list[tuple[int, int]]:
    """(type, free bytes) of all devices that ggml knows, the processor too; none where its
    functions are not found, as on Windows: there ctypes does not look into the libraries that
    llama.dll loads.

    Args:
        functions: libllama, as ctypes has it.
    """
    names = [f"ggml_backend_dev_{name}" for name in ("count", "get", "type", "memory")]
    if not all(hasattr(functions, name) for name in names):
        return []
    count, get, type_of, memory_of = (getattr(functions, name) for name in names)
    get.restype = ctypes.c_void_p
    found = []
    for index in range(count()):
        device = ctypes.c_void_p(get(index))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory_of(device, ctypes.byref(free), ctypes.byref(total))
        found.append((int(type_of(device)), free.value))
    return found
