"""Whether a model can be compared with transformers: checks its kind, its runner, and the memory
that both sides need, without loading anything.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hearth.backends.contract.models import Dtype, KvType, ModelSpec
from hearth.backends.errors import (
    BackendUnavailable,
    DoesNotFit,
    InvalidParameter,
    UnsupportedModel,
)
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.model_folder import DTYPE_BYTES, ModelFolder
from hearth.backends.native.workspace import Workspace

if TYPE_CHECKING:  # It needs msgspec, which may be missing where only PyTorch is installed.
    from hearth.backends.bench.model_facts import ModelFacts


_POOLS: Final = 3
"""Number of pools of keys and values: the engine's, and one for each of the two ways in which
transformers generates.
"""


def missing(reason: str = "") -> BackendUnavailable:
    """The error if transformers is not installed, or cannot be imported because of `reason`."""
    why = f": {reason}" if reason else "."
    return BackendUnavailable(
        f"--reference transformers needs transformers, which cannot be imported{why}",
        'Install it: pip install "hearth-llm[bench]"',
    )


def check_reference(facts: ModelFacts) -> None:
    """Refuse a model that cannot be compared with transformers.

    Raises:
        InvalidParameter: the runner is not the native one.
        UnsupportedModel: the model is not a folder of safetensors.
        BackendUnavailable: transformers is not installed.
    """
    if facts.spec.backend != "native":
        raise InvalidParameter(
            "reference",
            f"--reference is for the native backend; {facts.spec.path} would run with "
            f"{facts.spec.backend}.",
            "Name a folder of safetensors, or measure beside the raw loop, without --reference.",
        )
    if facts.folder is None:
        raise UnsupportedModel(
            f"--reference transformers needs a folder of safetensors, and {facts.spec.path} is a "
            "GGUF.",
            "Name the folder that the GGUF was made of, or measure without --reference.",
            path=facts.spec.path,
        )
    if importlib.util.find_spec("transformers") is None:
        raise missing()


def check_room(spec: ModelSpec, facts: ModelFacts, pool_tokens: int) -> None:
    """Refuse a model whose weights do not fit twice, with the pools of `pool_tokens` of all sides.

    Raises:
        DoesNotFit: with both numbers.
    """
    folder, settings = facts.folder, spec.settings
    assert folder is not None
    dtype, available = _on_device(spec, folder)
    ours = folder.weight_bytes(dtype)
    theirs = folder.parameters * DTYPE_BYTES[dtype]
    theirs_type: KvType = "f32" if dtype == "f32" else "f16"
    token = max(
        facts.kv_bytes(theirs_type, theirs_type),
        facts.kv_bytes(settings.kv_type, settings.value_type),
    )
    workspace = Workspace(folder.config, replace(settings, kv_type="f32", kv_type_v=None))
    need = ours + theirs + _POOLS * pool_tokens * token + 2 * workspace.bytes(pool_tokens)
    usable = int(available * settings.memory_fraction)
    if need > usable:
        raise DoesNotFit(
            f"Beside transformers the weights are in memory twice: {need / 1e9:.2f} GB with keys "
            f"and values are needed, {usable / 1e9:.2f} GB are available.",
            "Measure without --reference, a smaller model, or fewer --sessions.",
            needed_bytes=need,
            available_bytes=usable,
        )


def _on_device(spec: ModelSpec, folder: ModelFolder) -> tuple[Dtype, int]:
    """The type of the weights on the device that will run the model, and its free bytes."""
    import torch

    from hearth.kernels import device as devices

    device = devices.best_device()
    if spec.settings.is_on_processor or spec.settings.device:
        device = torch.device(spec.settings.device or "cpu")
    if device.type == "cpu":
        return spec.settings.dtype or folder.dtype, available_bytes()
    wide = devices.default_dtype(device) == torch.float32
    # Both half-precision types take the same memory.
    return spec.settings.dtype or ("f32" if wide else "bf16"), devices.free_bytes(device)
