"""The logits of given tokens, step by step, from a loaded runner: with the settings of normal use,
or so exactly that only the weights matter.
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
    """`spec` with float32 for everything: dequantized weights, activations, products, keys and
    values. Differences from other logits computed in this way are then due to the weights.
    """
    exact = replace(spec.settings, dtype="f32", kv_type="f32", flash_attention=False)
    return replace(spec, backend="native", settings=exact)


def next_token_logits(
    runner: CachedRunner, tokens: Sequence[int], first: int
) -> Iterator[NDArray[np.float32]]:
    """The logits that predict `tokens[first:]`, each from the tokens before it. Yields arrays of
    shape [rows, vocabulary], which are read-only and valid until the next one.

    The tokens are computed in steps like those of a request; slot 0 must be empty, and is empty
    afterwards.

    Args:
        first: 1 or more.
    """
    info = runner.runner.info
    computed, start, silent = tokens[:-1], 0, first - 1
    runner.kv.open(_SLOT, ())  # No cached prefix is used.
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
