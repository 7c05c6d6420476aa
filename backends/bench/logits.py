"""The logits of given tokens, step by step, by a runner that is loaded with a model: as it is
served, or so exactly that the weights alone decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.runner import Row, StepPlan

_SLOT = 0


def as_dequantized(spec: ModelSpec) -> ModelSpec:
    """`spec` in float32 throughout: weights with the very numbers that the file stands for,
    activations, products, keys and values. What differs from other logits is due to the weights.
    """
    exact = replace(spec.settings, dtype="f32", kv_type="f32", flash_attention=False)
    return replace(spec, backend="native", settings=exact)


def next_token_logits(
    runner: CachedRunner, tokens: Sequence[int], first: int
) -> Iterator[NDArray[np.float32]]:
    """The logits by which `tokens[first:]` are predicted, each of what comes before it: [some,
    vocabulary] each time, read-only and valid until the next.

    The tokens are computed in steps as a request's are; slot 0 must be empty, and is afterwards.

    Args:
        first: 1 or more.
    """
    info = runner.runner.info
    computed, start, silent = tokens[:-1], 0, first - 1
    runner.kv.open(_SLOT, ())  # Nothing that was computed before is used.
    try:
        while start < len(computed):
            if start < silent:
                end = min(silent, start + info.max_batch_tokens)
            else:
                most = min(info.max_batch_tokens, info.max_outputs)
                end = min(len(computed), start + most)
            outputs = end - start if start >= silent else 0
            row = Row(_SLOT, start, computed[start:end], outputs)
            result = runner.advance(StepPlan((row,)))
            if outputs:
                yield result.logits[_SLOT]
            start = end
    finally:
        runner.kv.release(_SLOT, keep=False)
