"""Logits of given tokens, against what the engine finds for the same tokens."""

from __future__ import annotations

import numpy as np
import pytest

from fake_runner import FakeRunner
from hearth.backends.bench.logits import as_dequantized, next_token_logits
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner


@pytest.mark.parametrize("first", [1, 2, 9, 39])
def test_each_token_is_predicted_by_all_before_it(first: int) -> None:
    runner = FakeRunner(chunk=8, max_outputs=5)
    cached = CachedRunner(runner)
    tokens = [7 * number % 19 for number in range(40)]
    for _ in range(2):  # The slot is empty again after the first.
        found = [logits.copy() for logits in next_token_logits(cached, tokens, first)]
        assert max(map(len, found)) <= 5
        expected = [runner.logits(tokens[:end]) for end in range(first, 40)]
        np.testing.assert_array_equal(np.concatenate(found), np.array(expected))
    assert cached.kv.length(0) == 0


def test_dequantized_weights_are_computed_in_float32_by_the_native_runner() -> None:
    spec = as_dequantized(ModelSpec("m.gguf", "m", "llamacpp", ModelSettings(threads=3)))
    assert (spec.path, spec.name, spec.backend) == ("m.gguf", "m", "native")
    settings = spec.settings
    assert (settings.dtype, settings.kv_type, settings.flash_attention) == ("f32", "f32", False)
    assert settings.threads == 3
