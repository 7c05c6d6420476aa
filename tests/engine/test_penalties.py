"""Repetition, frequency and presence penalties against a reference that recounts the window."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.penalties import SeenTokens, penalise

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=60)


def window_of(text, window):
    return text if window < 0 else text[len(text) - min(window, len(text)) :]


def penalised(logits, text, params):
    """The formulas of the papers, token by token."""
    expected = logits.astype(np.float64)
    for token, count in Counter(window_of(text, params.repetition_window)).items():
        value = expected[token]
        value = (
            value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        )
        expected[token] = value - count * params.frequency_penalty - params.presence_penalty
    return expected


@settings(deadline=None)
@given(
    prompt=tokens,
    said=tokens,
    window=st.integers(-1, 20),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    frequency=st.sampled_from([-1.0, 0.0, 0.7]),
    presence=st.sampled_from([-2.0, 0.0, 0.4]),
    seed=st.integers(0, 1000),
)
def test_penalties_equal_the_formulas(prompt, said, window, repetition, frequency, presence, seed):
    params = SamplingParams(
        repetition_window=window,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    seen = SeenTokens(window, prompt)
    for token in said:
        seen.add(token)
    logits = np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)
    expected = penalised(logits, prompt + said, params)
    if (entries := seen.entries()) is not None:
        assert dict(zip(*entries, strict=True)) == dict(Counter(window_of(prompt + said, window)))
        penalise(logits, entries, params)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_large_vocabulary_of_seen_tokens():
    seen = SeenTokens(-1, list(range(1000)) * 2)
    ids, counts = seen.entries()
    assert sorted(ids) == list(range(1000)) and set(counts) == {2}
