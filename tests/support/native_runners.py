"""Native runners over folders without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.determinism import make_deterministic
from hearth.backends.native.graphs import GraphDevice
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.weights import load_weights
from hearth.quant.families.config import LayerConfig, ModelConfig, Rope
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder
from tiny_checkpoints import VOCABULARY

CPU = torch.device("cpu")


def runner_of(
    folder: Path,
    settings: ModelSettings,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    triton: bool = False,
    tiled: bool = False,
    records: GraphDevice | None = None,
) -> Driven:
    """The runner of a folder of weights, with everything in `dtype`, or according to `settings`.

    Args:
        triton: Triton kernels work on the device.
        records: the recorder of graphs of single tokens, if `triton` works; None: no graphs.
        tiled: matrices are for the processor kernels, with activations in float32.
    """
    fields = read_fields(folder / "config.json")
    family = family_of_hf(fields)
    config = family.from_hf(fields)
    config = config.for_context(settings.context or config.context)
    compute = torch.float32 if tiled else dtype
    plan = plan_memory(
        settings,
        config,
        device=device,
        dtype=dtype,
        compute_dtype=compute,
        weight_bytes=0,
        available_bytes=1 << 30,
        triton=triton,
        graphs=records is not None,
    )
    decoder = Decoder(config, device, dtype, activations=compute, context=plan.context)
    file = SafetensorsFolder(folder)
    load_weights(decoder, family, file, device, tiled=tiled, exact=tiled)
    if plan.deterministic:
        make_deterministic(decoder)
    runner = NativeRunner(
        decoder,
        plan,
        end_ids=frozenset(),
        fingerprint=folder.name.encode(),
        own_pooling="mean",
        threads=1,
        batch_threads=1,
        on_close=file.close,
        records=records,
    )
    return Driven(runner)


def advance(runner: Driven, slot: int, tokens: list[int], *others: Row) -> NDArray[np.float32]:
    """Compute `tokens` at the end of `slot` in one step with `others`; returns [tokens,
    vocabulary].
    """
    row = runner.row(slot, tokens, len(tokens))
    return runner.step(StepPlan((*others, row))).logits[slot].copy()


def some_tokens(count: int, seed: int = 0) -> list[int]:
    """Random tokens of the vocabulary of tiny checkpoints."""
    generator = np.random.default_rng(seed)
    return [int(token) for token in generator.integers(3, VOCABULARY, count)]


class Silent:
    """Replaces a tokenizer: no text is decoded."""

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        return b""


def loaded_of(runner: Driven) -> Loaded:
    """A `Loaded` for an engine, which has its own KV cache."""
    return Loaded(runner.runner, Silent(), None, None)  # type: ignore[arg-type]


def llama_8b() -> ModelConfig:
    """The config of Llama 3.1 8B."""
    return ModelConfig(
        "llama",
        vocab_size=128_256,
        width=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        feed_forward=14_336,
        layers=(LayerConfig(Rope(500_000.0, 128)),) * 32,
        context=131_072,
        norm_eps=1e-5,
        tied=False,
    )
