"""Which runner opens a model if none is named (`--backend auto`), and why.

Only the native runner opens safetensors. A GGUF is opened by the native runner on CUDA cards that
have the memory for its weights, and by llama.cpp on other GPUs, including Apple's. On processors,
the runner that was measured to be faster opens it. Without measurements, the native runner is used
on processors with AVX-512 VNNI if its kernels multiply all matrices of the GGUF and the weights fit
into half of the free memory; docs/results/2026-11-24-packed-matrices.md has the figures. What a
runner cannot do counts before its speed, because loading would fail.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import HearthError, ModelNotFound, UnsupportedModel
from hearth.backends.machine.gpus import card_free_bytes, has_cuda
from hearth.backends.worker.speeds import Speeds, kind_of
from hearth.kernels.cpu.layouts import HALVES, LAYOUTS, Instructions, instructions
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile, TensorInfo

Runner = Literal["llamacpp", "native"]

MEASURE: Final = "hearth doctor --measure"
FAST: Final = ("avx512", "amx")
"""Instructions with which the native runner is faster than llama.cpp."""
_TILED: Final = frozenset((*LAYOUTS, *HALVES))


@dataclass(frozen=True, slots=True)
class Choice:
    """A runner, and the reason in a few words."""

    runner: Runner
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about a machine that the choice depends on."""

    is_apple: bool
    has_cuda: bool
    """PyTorch can use a CUDA card."""
    has_torch: bool
    has_llamacpp: bool
    card_free_bytes: int | None = None
    """Free memory of the card; None: unknown."""
    instructions: Instructions | None = None
    """Instruction set that the native runner's processor kernels use."""


def this_machine() -> Machine:
    """The facts about this machine, found without importing PyTorch or llama.cpp."""
    return Machine(
        is_apple=sys.platform == "darwin",
        has_cuda=has_cuda(),
        has_torch=importlib.util.find_spec("torch") is not None,
        has_llamacpp=importlib.util.find_spec("llama_cpp") is not None,
        card_free_bytes=card_free_bytes() if has_cuda() else None,
        instructions=instructions(),
    )


def choose(spec: ModelSpec, cache_dir: Path | None, machine: Machine | None = None) -> Choice:
    """The runner of a model that is a file or folder on this machine; reads the header of a GGUF
    if the choice depends on it.

    Args:
        spec: its backend is "auto", or names the backend to use.
        cache_dir: where measured speeds are kept; None: nothing was measured.
        machine: default is this machine.

    Raises:
        ModelNotFound: there is no such file or folder.
        UnsupportedModel: the named backend cannot run this kind of file; the hint names one that
            can.
        HearthError: the file is corrupt.
    """
    if spec.backend != "auto":
        return _asked(spec)
    if is_safetensors(Path(spec.path)):
        return Choice("native", "only it reads safetensors")
    machine = machine or this_machine()
    is_cpu = not (machine.has_cuda or machine.is_apple) or spec.settings.is_on_processor
    speeds = Speeds(cache_dir) if cache_dir is not None and is_cpu else None
    wants = _native_only(spec.settings)
    if not machine.has_torch:
        return Choice("llamacpp", "PyTorch is not installed")
    if machine.has_llamacpp and not wants:
        refused = _llamacpp_only(spec.settings, is_cpu=is_cpu)
        if refused:
            return Choice("llamacpp", f"only it has {refused}")
        if machine.is_apple:
            return Choice("llamacpp", "it is the faster one on Apple's processors")
        if is_cpu and machine.instructions not in FAST and not (speeds and speeds.all()):
            return Choice("llamacpp", f"nothing was measured here yet ({MEASURE})")
    if not Path(spec.path).is_file():
        raise ModelNotFound(
            f"There is no file or folder {spec.path}.", "`hearth list` shows the models you have."
        )
    header = preflight.check(spec.path)
    reason = not_native(header)
    if reason:
        return Choice("llamacpp", reason)
    if wants:
        return Choice("native", f"only it has {wants}")
    if not machine.has_llamacpp:
        return Choice("native", "llama.cpp is not installed")
    reason = _not_native_here(header, spec.settings, machine)
    if reason:
        return Choice("llamacpp", reason)
    if not is_cpu:
        return Choice("native", "PyTorch has a CUDA card here")
    return _by_speed(header, machine, speeds)


def is_safetensors(path: Path) -> bool:
    """Whether `path` is a folder of safetensors or a file in one, and not a GGUF."""
    return path.is_dir() or path.suffix.lower() == ".safetensors"


def not_native(header: GgufFile) -> str:
    """Why the native runner cannot run a GGUF on any machine; empty if it can, judging by the
    header.
    """
    from hearth.backends.native.gguf_model import refuse_what_cannot_run
    from hearth.quant.families.table import family_of_gguf

    try:
        family_of_gguf(header.architecture)
    except UnsupportedModel:
        return f"the native runner does not know {header.architecture}"
    try:
        refuse_what_cannot_run(header)
    except HearthError as error:
        return error.message.removeprefix(f"{header.path}: ").rstrip(".")
    return ""


def _not_native_here(header: GgufFile, settings: ModelSettings, machine: Machine) -> str:
    """Why the native runner cannot run a supported GGUF on `machine` with `settings`; empty if it
    can.
    """
    layers = settings.gpu_layers
    has_gpu = machine.has_cuda or machine.is_apple
    if layers and (not has_gpu or layers <= header.integer(f"{header.architecture}.block_count")):
        return f"only it has gpu_layers {layers}"
    free = machine.card_free_bytes
    if not machine.has_cuda or layers == 0 or free is None:
        return ""
    needed = _card_bytes(header, settings)
    if needed <= free * settings.memory_fraction:
        return ""
    return (
        f"the native runner needs {needed / 1e9:.1f} GB of the card for the weights and a context, "
        f"of which {free / 1e9:.1f} GB are free"
    )


def _card_bytes(header: GgufFile, settings: ModelSettings) -> int:
    """Memory of a card that the native runner takes if weights without a kernel for their packed
    form are unpacked once at load. If that does not fit, it would unpack them in each step.
    """
    from hearth.backends.native.footprint import card_packings, least_bytes
    from hearth.backends.native.gguf_model import read_gguf_config
    from hearth.backends.native.model_folder import weight_bytes

    stored = [tensor.stored for tensor in header.all_tensors]
    weights = weight_bytes(stored, "bf16", packed=card_packings(), on_gpu=True)
    _, config = read_gguf_config(header)
    return weights + least_bytes(config, settings)


def _asked(spec: ModelSpec) -> Choice:
    if spec.backend == "llamacpp" and is_safetensors(Path(spec.path)):
        raise UnsupportedModel(
            f"{spec.path} is a model in safetensors, which llama.cpp does not read.",
            "Run it with --backend native (auto takes that too), or convert it: hearth quantize "
            f"{spec.name or spec.path} --to Q8_0",
            path=spec.path,
        )
    if spec.backend not in ("llamacpp", "native"):
        raise UnsupportedModel(
            f"The backend {spec.backend} runs no files of this machine.",
            "Use --backend auto, llamacpp or native.",
        )
    return Choice(spec.backend, "it was asked for")


def _by_speed(header: GgufFile, machine: Machine, speeds: Speeds | None) -> Choice:
    """The runner that was measured to be faster; without a measurement, chosen by the processor's
    instruction set.
    """
    from hearth.backends.native.footprint import is_mapped

    kind = kind_of(header)
    measured = speeds.of(kind) if speeds is not None else None
    if measured is not None:
        runner: Runner = "native" if measured.is_native_faster else "llamacpp"
        return Choice(runner, f"{kind}: {measured.words}")
    what = f"{kind} models were" if kind else "mixtures of experts are"
    if machine.instructions not in FAST:
        return Choice("llamacpp", f"{what} not measured here ({MEASURE})")
    matrices = [tensor for tensor in header.all_tensors if _is_for_kernels(tensor)]
    for tensor in matrices:
        if tensor.type.name not in _TILED:
            return Choice("llamacpp", f"the native runner has no kernel for {tensor.type.name}")
    weights = sum(tensor.nbytes for tensor in matrices)
    if is_mapped(weights):
        return Choice(
            "llamacpp",
            f"it leaves the weights, {weights / 1e9:.1f} GB, in the file; the native runner copies "
            "them, which takes more than half of the free memory",
        )
    return Choice("native", "its kernels are the faster ones with AVX-512 VNNI")


def _is_for_kernels(tensor: TensorInfo) -> bool:
    """Whether a tensor is a matrix and not a router of experts; routers are stored and computed in
    float32.
    """
    is_weight = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    return is_weight and ".ffn_gate_inp." not in tensor.name


def _native_only(settings: ModelSettings) -> str:
    """The setting in use that only the native runner supports; empty if none."""
    if settings.deterministic:
        return "deterministic"
    for name, kv_type in (("kv_type", settings.kv_type), ("kv_type_v", settings.value_type)):
        if kv_type == "fp8":
            return f"{name} {kv_type}"
    if settings.device not in (None, "cpu"):
        return f"device {settings.device}"
    return f"dtype {settings.dtype}" if settings.dtype is not None else ""


def _llamacpp_only(settings: ModelSettings, *, is_cpu: bool) -> str:
    """The setting in use for which llama.cpp is chosen; empty if none. On GPUs the native runner's
    prefill with q8_0 unpacks the pages that it reads.
    """
    kept = ("f16", "f32", "fp8", "q8_0") if is_cpu else ("f16", "f32", "fp8")
    for name, kv_type in (("kv_type", settings.kv_type), ("kv_type_v", settings.value_type)):
        if kv_type not in kept:
            return f"{name} {kv_type}"
    if settings.extra_buffers is not None:
        return "extra_buffers"
    return ""
