"""Keys and values in Q8_0: the outputs of a real model are close to those with half precision, and
a row has the same bits whatever else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from driven import Driven
from hearth.backends.contract.models import KvType, ModelSettings, ModelSpec
from hearth.backends.engine.runner import StepPlan
from hearth.backends.native.load import open_model
from hearth.backends.native.page_kernels import LayersInC
from hearth.backends.native.runner import NativeRunner
from hearth.kernels.cpu.layouts import multiplied
from hearth.quant.gguf.quantize_run import run
from native_runners import advance
from quantizing import GUIDE, planned

Open = Callable[[KvType, KvType], Driven]
TEXT = (
    "Hearth runs language models on this machine. Every model is a file; `hearth list` shows "
    "them, and `hearth pull` downloads one. Quantized weights take less memory, and so do keys "
    "and values, which each session keeps of all that it has read. "
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """`opened(key_type, value_type)`: guide with weights in Q8_0, with one thread."""
    assert multiplied(), "run `make`"
    threads = torch.get_num_threads()
    path = run(planned(GUIDE, "Q8_0"), tmp_path / "guide.gguf").path
    runners: list[NativeRunner] = []

    def make(kv_type: KvType, kv_type_v: KvType) -> Driven:
        settings = ModelSettings(
            kv_type=kv_type,
            kv_type_v=kv_type_v,
            context=512,
            threads=1,
            batch_threads=1,
            dtype="f32",
        )
        runner = open_model(ModelSpec(str(path), settings=settings)).runner
        assert isinstance(runner, NativeRunner)
        assert isinstance(runner.decoder.fused, LayersInC)
        runners.append(runner)
        return Driven(runner)

    yield make
    for runner in runners:
        runner.close()
    torch.set_num_threads(threads)


def law(runner: Driven, tokens: list[int]) -> NDArray[np.float64]:
    """Log probabilities [tokens, vocabulary] of the next token, computed a few at a time."""
    found = [advance(runner, 0, tokens[at : at + 4]) for at in range(0, len(tokens), 4)]
    logits = np.concatenate(found).astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("key_type", "value_type"), [("q8_0", "q8_0"), ("q8_0", "f16"), ("f16", "q8_0")]
)
def test_what_comes_next_is_nearly_as_with_half_precision(
    opened: Open, key_type: KvType, value_type: KvType
) -> None:
    tokens = [3 + ord(letter) % 200 for letter in TEXT][:160]
    exact = law(opened("f16", "f16"), tokens)
    found = law(opened(key_type, value_type), tokens)
    divergence = (np.exp(exact) * (exact - found)).sum(-1)
    assert 0 < divergence.mean() < 1e-3
    assert divergence.max() < 1e-2


def test_a_row_has_the_same_bits_whatever_else_runs(opened: Open) -> None:
    rng = np.random.default_rng(3)
    texts = [[int(one) for one in rng.integers(3, 300, count)] for count in (3, 40, 17, 130)]
    alone, together = opened("q8_0", "q8_0"), opened("q8_0", "q8_0")
    wanted = []
    for slot, text in enumerate(texts):
        for runner in (alone, together):
            for at in range(0, len(text), 4):
                runner.step(StepPlan((runner.row(slot, text[at : at + 4]),)))
        wanted.append(advance(alone, slot, [7, 8]))
    rows = tuple(together.row(slot, [7, 8], 2) for slot in range(len(texts)))
    found = together.step(StepPlan(rows)).logits
    for slot, logits in enumerate(wanted):
        assert np.array_equal(found[slot], logits)
