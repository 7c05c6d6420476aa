"""A tree of drafts in one step gives the same as its paths token by token, bit for bit where sums
do not depend on the other rows of a step; the accepted path becomes the new end of the sequence.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from driven import Driven
from guide_forms import derive
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native import page_kernels
from hearth.backends.native.load import open_model
from native_runners import runner_of
from tiny_checkpoints import WINDOW, tiny_checkpoint

TREES = pytest.mark.parametrize("trees", [40, pytest.param(1000, marks=pytest.mark.slow)])
CONTEXT = 128
EXACT = ModelSettings(context=CONTEXT, threads=1, batch_threads=1, deterministic=True)


def random_tree(rng: random.Random, nodes: int, vocab: int) -> tuple[list[int], list[int]]:
    parents = [rng.randrange(place) for place in range(1, nodes + 1)]
    return [rng.randrange(vocab) for _ in parents], parents


def assert_trees_equal_sequences(runner: Driven, trees: int, tolerance: float = 0.0) -> None:
    """Of two slots, which share nothing, one gets trees and the other one token per step."""
    rng, vocab = random.Random(11), min(200, runner.info.vocab_size)
    cached = CachedRunner(runner.runner)
    kv, length, moved = cached.kv, 0, 0
    for _ in range(trees):
        nodes = rng.randint(2, 16)
        if not length or length + nodes + 1 > CONTEXT:
            for slot in (0, 1):
                kv.release(slot, keep=False) if length else None
            prompt = [rng.randrange(vocab) for _ in range(rng.randint(2, 30))]
            length = len(prompt)
            for slot in (0, 1):
                kv.open(slot, prompt, bytes([slot]))
                assert kv.reserve(slot, length)
                cached.advance(StepPlan((Row(slot, 0, prompt, 1),)))
        last = rng.randrange(vocab)
        tokens, parents = random_tree(rng, nodes, vocab)
        row = Row(0, length, [last, *tokens], nodes + 1, drafts=nodes, parents=parents)
        assert kv.reserve(0, length + nodes + 1)
        by_tree = np.array(cached.step(StepPlan((row,))).logits[0])
        path, place = [], rng.randint(0, nodes)
        while place:
            path.insert(0, place)
            place = parents[place - 1]
        kv.keep(0, [0, *path])
        moved += path != list(range(1, len(path) + 1))
        way = [last, *(tokens[place - 1] for place in path)]
        kv.commit(0, way, computed=nodes + 1)
        for at, (place, token) in enumerate(zip([0, *path], way, strict=True)):
            assert kv.reserve(1, length + at + 1)
            alone = cached.advance(StepPlan((Row(1, length + at, [token], 1),))).logits[1][0]
            np.testing.assert_allclose(by_tree[place], alone, rtol=0, atol=tolerance)
        length += len(way)
    assert moved > trees // 10


@TREES
@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama2", {}), ("mistral", {"sliding_window": WINDOW}), ("mixtral", {})],
)
def test_random_trees_equal_sequences_in_exact_mode(
    family: str, changes: dict[str, Any], trees: int, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, tmp_path, **changes)
    assert_trees_equal_sequences(runner_of(folder, EXACT), trees)


@TREES
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_random_trees_equal_sequences_in_default_mode_over_packed_weights(
    kv_type: Any, trees: int, tmp_path: Path
) -> None:
    settings = ModelSettings(context=CONTEXT, threads=1, batch_threads=1, kv_type=kv_type)
    loaded = open_model(ModelSpec(str(derive("Q8_0", tmp_path)), settings=settings))
    assert_trees_equal_sequences(Driven(loaded.runner), trees)
    loaded.runner.close()


@pytest.mark.parametrize("exact", [True, False])
def test_trees_without_kernels_equal_sequences(
    exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch computes attention: with a window, in exact mode and with a mask."""
    monkeypatch.setattr(page_kernels, "cpu_library", lambda: None)
    folder = tiny_checkpoint("mistral", tmp_path, sliding_window=WINDOW)
    settings = ModelSettings(
        context=CONTEXT, threads=1, batch_threads=1, deterministic=exact, kv_type="f32"
    )
    torch.set_num_threads(1)
    assert_trees_equal_sequences(runner_of(folder, settings), 50, 0.0 if exact else 1e-4)
