"""DRY compared with a reference that compares every earlier position with the end of the text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.dry import RepeatedRuns, breaker_ids

VOCAB = 5
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=40)


def longest_runs(text, breakers, window, allowed):
    """For each token: the length of the longest run before it that also ends the text."""
    if window >= 0:
        text = text[len(text) - min(window, len(text)) :]
    longest = {}
    for end in range(1, len(text)):
        run = 0
        while (
            run < end
            and text[end - 1 - run] == text[len(text) - 1 - run]
            and text[end - 1 - run] not in breakers
        ):
            run += 1
        if run >= allowed and text[end] not in breakers:
            longest[text[end]] = max(run, longest.get(text[end], 0))
    return longest


@settings(deadline=None)
@given(
    prompt=tokens,
    said=tokens,
    breakers=st.sets(st.integers(0, VOCAB - 1), max_size=2),
    window=st.integers(-1, 30),
    allowed=st.integers(1, 4),
)
def test_runs_equal_the_reference(prompt, said, breakers, window, allowed):
    runs = RepeatedRuns(window, breakers, prompt)
    text = list(prompt)
    assert runs.run_lengths(allowed) == longest_runs(text, breakers, window, allowed)
    for token in said:
        runs.add(token)
        text.append(token)
        assert runs.run_lengths(allowed) == longest_runs(text, breakers, window, allowed)


def test_penalty_grows_with_the_run():
    params = SamplingParams(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)
    runs = RepeatedRuns(-1, frozenset(), [1, 2, 3, 4, 9, 1, 2, 3])
    ids, penalties = runs.penalties(params)
    assert (ids.tolist(), penalties.tolist()) == ([4], [0.5 * 2.0 ** (3 - 2)])
    assert RepeatedRuns(-1, frozenset(), [1, 2, 3]).penalties(params) is None


def test_the_penalty_of_a_very_long_run_is_finite():
    params = SamplingParams(dry_multiplier=100.0, dry_base=10.0)
    ids, penalties = RepeatedRuns(-1, frozenset(), [1] * 5000).penalties(params)
    assert ids.tolist() == [1]
    assert penalties.dtype == np.float32
    assert 1e29 < penalties[0] < np.inf


class Letters:
    """A tokenizer of six pieces."""

    pieces = (b"a", b"b\n", b": ", b"\n\n", b"*", b"<")
    vocab_size = len(pieces)

    def piece(self, token_id, *, special=False):
        return self.pieces[token_id]

    def encode(self, text, *, special, add_bos):
        return [self.pieces.index(char.encode()) for char in text]


def test_breakers_are_the_tokens_that_contain_them_or_end_them():
    assert breaker_ids(Letters(), ("\n", ":")) == {1, 2, 3}
    assert breaker_ids(Letters(), ("a<",)) == {5}
