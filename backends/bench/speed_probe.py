"""Measures within seconds how fast a runner is with one kind of model, on a small random model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.bench.cases import Case
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.measure import median_rate
from hearth.backends.contract.models import BackendName, ModelSettings, ModelSpec
from hearth.backends.errors import UnsupportedModel
from hearth.backends.llamacpp.probe_model import Heads, Shape, write_llama
from hearth.backends.worker.runners import open_model
from hearth.backends.worker.speeds import Speed
from hearth.quant.ggml import Ggml
from hearth.quant.gguf.types import TensorType

_SHAPE: Final = Shape(1024, 2816, 1024, Heads(16, 4, 64, 64), layers=4, vocab=4096)
"""53 million weights, more than fit into a cache, in rows of whole blocks."""
_PROMPT: Final = 256
_STEPS: Final = 24
_REPEATS: Final = 3
_SEED: Final = 20_011


def measure_runner(runner: BackendName, kind: str, cache_dir: Path) -> Speed:
    """Speed of prefill and decode of one session: the medians of three measurements, after one that
    does not count.

    Args:
        kind: from `hearth.backends.worker.speeds.kind_of`.
        cache_dir: where self-test results for this machine are kept.

    Raises:
        UnsupportedModel: there is no such type, or random weights of it cannot be made.
        HearthError: what `open_model` raises.
    """
    with tempfile.TemporaryDirectory(prefix="hearth-speed-") as folder:
        path = write_probe(Path(folder, "probe.gguf"), kind)
        settings = ModelSettings(context=_SHAPE.context, max_sessions=1, kv_pool="static")
        loaded = open_model(ModelSpec(str(path), "probe", runner, settings), cache_dir)
        try:
            side = EngineSide(loaded)
            prefill = Case("prefill", "pp", 1, _PROMPT, 0, 0, fresh=True)
            decode = Case("decode", "depth", 1, _PROMPT, 0, _STEPS, fresh=False)
            return Speed(*(median_rate(case, side, _REPEATS) for case in (prefill, decode)))
        finally:
            loaded.runner.close()


def write_probe(path: Path, kind: str) -> Path:
    """Write a llama model with random weights of the GGUF type `kind`; all its layers are the same.

    Raises:
        UnsupportedModel: there is no such type, or it needs more than random weights.
        GgmlUnavailable: the library that packs weights is not installed.
    """
    import gguf

    if kind not in TensorType.__members__:
        raise UnsupportedModel(f"There is no GGUF type {kind}.")
    ggml, stream = Ggml(), np.random.default_rng(_SEED)
    ggml.prepare(TensorType[kind])

    def random(shape: tuple[int, ...]) -> NDArray[Any]:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        weights = stream.standard_normal(shape, np.float32) * shape[1] ** -0.5
        packed = ggml.quantize_chunk(TensorType[kind], weights.astype(np.float32, copy=False))
        return packed.reshape(shape[0], -1)

    tensors = {name: random(shape) for name, shape in _SHAPE.outer.items()}
    for name, shape in _SHAPE.layer.items():
        rows = random(shape)
        tensors |= {f"blk.{index}.{name}": rows for index in range(_SHAPE.layers)}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\u2581{index}" for index in range(_SHAPE.vocab - len(tokens))]
    write_llama(path, tensors, gguf.GGMLQuantizationType[kind], _SHAPE, tokens)
    return path
