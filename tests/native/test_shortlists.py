"""The sampler draws the same from a shortlist as from the whole row."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.sampler import Drawn, Sampler
from hearth.backends.engine.shortlist import Shortlist, ShortlistSpec
from hearth.backends.errors import InternalError, InvalidParameter
from hearth.backends.native.outputs import shortlists

Logits = NDArray[np.float32]
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0.0)
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


@dataclass
class Case:
    """One row: its logits, its sampler, and the position."""

    logits: Logits
    sampler: Sampler
    position: int
    banned: Collection[int] = ()
    fetched: bool = False
    """Whether the whole row was needed."""

    @property
    def spec(self) -> ShortlistSpec | None:
        return self.sampler.shortlist(self.position, self.banned)

    def row(self) -> Logits:
        self.fetched = True
        return self.logits

    def drawn(self, logits: Logits | Shortlist | None = None) -> Drawn:
        row = self.logits if logits is None else logits
        return self.sampler.draw(row, self.position, banned=self.banned)


def made(cases: Sequence[Case], device: str = "cpu") -> list[Shortlist]:
    """The shortlists of `cases`, which all ask for one, as one batch."""
    logits = torch.from_numpy(np.stack([case.logits for case in cases])).to(device)
    before = logits.clone()
    specs = [case.spec for case in cases]
    found = shortlists(logits, range(len(cases)), [spec for spec in specs if spec is not None])
    for case, short in zip(cases, found, strict=True):
        np.testing.assert_array_equal(short.row(), case.logits)
        short.row = case.row
    assert torch.equal(logits.nan_to_num(), before.nan_to_num()), "the logits were changed"
    return found


def assert_same(found: Drawn, wanted: Drawn) -> None:
    assert found.id == wanted.id
    assert (found.logprob is None) == (wanted.logprob is None)
    if found.logprob is not None:
        assert found.logprob == pytest.approx(wanted.logprob, abs=2e-5, rel=1e-5)
    assert [ident for ident, _ in found.top] == [ident for ident, _ in wanted.top]
    values = [value for _, value in wanted.top]
    assert [value for _, value in found.top] == pytest.approx(values, abs=2e-5, rel=1e-5)


class Cases:
    """Random rows of every kind, from a seed."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._random = np.random.default_rng(seed)

    def case(self) -> Case:
        random = self._random
        params = self._params()
        prompt = self._tokens(int(random.integers(0, 60)))
        sampler = Sampler(params, prompt_ids=prompt, breakers=frozenset(self._tokens(2)))
        for token in self._tokens(int(random.integers(0, 20))):
            sampler.accept(token)
        banned = self._one([(), (), frozenset(self._tokens(3))])
        return Case(self._logits(), sampler, int(random.integers(0, 1 << 40)), banned)

    def _logits(self) -> Logits:
        random = self._random
        logits = random.normal(0, self._one([0.5, 2.0, 6.0]), self._size)
        logits[random.integers(0, self._size, 30)] += random.normal(8, 3, 30)
        kind = random.integers(0, 4)
        if kind == 0:  # As from bfloat16: many are equal.
            logits = np.round(logits * 4) / 4
        elif kind == 1:
            logits[random.random(self._size) < 0.3] = -math.inf
        return logits.astype(np.float32)

    def _tokens(self, count: int) -> list[int]:
        """Tokens from a small set, so that they repeat."""
        return [int(token) for token in self._random.integers(0, min(self._size, 12), count)]

    def _params(self) -> SamplingParams:
        random, one = self._random, self._one
        if random.random() < 0.1:
            return SamplingParams(
                temperature=0.0, logprobs=one([None, 3]), presence_penalty=one([0.0, 1.5])
            )
        bias = {token: one([-100.0, -3.0, 4.0]) for token in self._tokens(3)}
        return SamplingParams(
            temperature=one([1e-30, 0.1, 0.7, 0.7, 1.0, 1.0, 3.0]),
            top_k=one([0, 0, 1, 20, 40, 40, 1000]),
            top_p=one([1.0, 0.95, 0.8, 0.1, 1e-9]),
            min_p=one([0.0, 0.05, 0.2]),
            typical_p=one([1.0, 1.0, 0.9, 0.4]),
            repetition_penalty=one([1.0, 1.0, 1.3, 0.7]),
            repetition_window=one([64, -1, 5]),
            frequency_penalty=one([0.0, 0.0, 0.6, -0.4]),
            presence_penalty=one([0.0, 0.0, 1.1]),
            dry_multiplier=one([0.0, 0.0, 0.8]),
            dry_allowed_length=1,
            xtc_probability=one([0.0, 0.0, 0.5, 1.0]),
            xtc_threshold=one([0.1, 0.02, 0.0, 0.4]),
            logit_bias=one([{}, {}, bias]),
            seed=int(random.integers(0, 1 << 62)),
            logprobs=one([None, None, 0, 5, 20]),
        )

    def _one(self, choices):
        return choices[int(self._random.integers(0, len(choices)))]


@DEVICES
@pytest.mark.parametrize(("size", "batches"), [(100, 40), (3_000, 40), (5_000, 40), (50_000, 8)])
def test_every_token_is_that_of_the_whole_row(size: int, batches: int, device: str) -> None:
    random = Cases(size, seed=size)
    drawn = fetched = 0
    for _ in range(batches):
        cases = [case for case in (random.case() for _ in range(32)) if case.spec is not None]
        for case, short in zip(cases, made(cases, device), strict=True):
            assert_same(case.drawn(short), case.drawn())
            drawn, fetched = drawn + 1, fetched + case.fetched
    assert drawn > 15 * batches
    assert 0 < fetched < 0.5 * drawn


@DEVICES
def test_usual_settings_need_no_whole_row(device: str) -> None:
    random = np.random.default_rng(8)
    logits = random.normal(0, 3, (200, 30_000)).astype(np.float32)
    some = [
        SamplingParams(),
        replace(OFF, top_k=100, typical_p=0.9, xtc_probability=1.0),
        GREEDY,
        replace(OFF, min_p=0.1),
        replace(OFF, top_p=0.4, logprobs=20),
        replace(GREEDY, frequency_penalty=0.5, logprobs=3),
        SamplingParams(repetition_penalty=1.2, logit_bias={5: 3.0, 6: -100.0}),
    ]
    cases = [
        Case(
            row,
            Sampler(replace(some[number % len(some)], seed=number), prompt_ids=range(50)),
            number,
        )
        for number, row in enumerate(logits)
    ]
    for case, short in zip(cases, made(cases, device), strict=True):
        assert_same(case.drawn(short), case.drawn())
        assert not case.fetched


@pytest.mark.parametrize(
    "params",
    [OFF, replace(OFF, top_k=1024), replace(OFF, typical_p=0.9, min_p=0.1)],
    ids=["wide", "top_k", "typical"],
)
def test_what_is_over_a_vocabulary_asks_for_whole_rows(params: SamplingParams) -> None:
    assert Sampler(params).shortlist(0) is None


@pytest.mark.parametrize(
    "params",
    [replace(OFF, top_p=0.99), replace(OFF, min_p=0.001), replace(OFF, top_k=1000)],
    ids=["top_p", "min_p", "top_k"],
)
def test_the_row_is_fetched_where_too_much_of_it_is_hidden(params: SamplingParams) -> None:
    # Of equal values, top-k on a device takes any, so those at the edge are unknown.
    logits = np.random.default_rng(3).integers(-3, 4, 9_000).astype(np.float32)
    case = Case(logits, Sampler(replace(params, seed=1)), 2)
    (short,) = made([case])
    assert case.drawn(short) == case.drawn()
    assert case.fetched


def test_the_row_is_fetched_where_rounding_may_decide() -> None:
    # Half of eight equal candidates are exactly four: rounding decides about the fifth.
    case = Case(np.full(2_000, -50.0, np.float32), Sampler(replace(OFF, top_p=0.5, seed=3)), 0)
    case.logits[:8] = 0.0
    (short,) = made([case])
    assert case.drawn(short) == case.drawn()
    assert case.fetched


@DEVICES
def test_a_plain_greedy_batch_takes_one_number_a_row(device: str) -> None:
    logits = np.random.default_rng(1).integers(0, 4, (30, 2_000)).astype(np.float32)
    cases = [Case(row, Sampler(GREEDY), 5) for row in logits]
    made_of = made(cases, device)
    assert [len(short.ids) for short in made_of] == [1] * 30
    drawn = [case.drawn(short).id for case, short in zip(cases, made_of, strict=True)]
    assert drawn == [int(row.argmax()) for row in logits]
    assert not any(case.fetched for case in cases)


def bad_rows(size: int) -> dict[str, tuple[Logits, Collection[int], type[Exception]]]:
    good = np.random.default_rng(0).normal(0, 2, size).astype(np.float32)
    rows: dict[str, tuple[Logits, Collection[int], type[Exception]]] = {
        "banned": (good, range(size), InvalidParameter),
        "empty": (np.full(size, -math.inf, dtype=np.float32), (), InternalError),
    }
    for name, value in (("nan", math.nan), ("infinite", math.inf)):
        logits = good.copy()
        logits[size // 2] = value
        rows[name] = (logits, (), InternalError)
    return rows


@DEVICES
@pytest.mark.parametrize("params", [GREEDY, SamplingParams()], ids=["greedy", "usual"])
@pytest.mark.parametrize("kind", ["banned", "empty", "nan", "infinite"])
def test_what_cannot_be_drawn_from_is_an_error_and_harms_no_other(
    kind: str, params: SamplingParams, device: str
) -> None:
    size = 6_000
    params = replace(params, seed=1, logprobs=2)
    logits, banned, error = bad_rows(size)[kind]
    good = np.random.default_rng(5).normal(0, 2, (2, size)).astype(np.float32)
    cases = [
        Case(good[0], Sampler(params), 3),
        Case(logits, Sampler(params), 4, banned),
        Case(good[1], Sampler(params), 5),
    ]
    first, bad, last = made(cases, device)
    with pytest.raises(error) as wanted:
        cases[1].drawn()
    with pytest.raises(error) as found:
        cases[1].drawn(bad)
    assert str(found.value) == str(wanted.value)
    assert_same(cases[0].drawn(first), cases[0].drawn())
    assert_same(cases[2].drawn(last), cases[2].drawn())


def test_what_is_not_finite_and_banned_does_no_harm() -> None:
    logits = np.random.default_rng(0).normal(0, 2, 5_000).astype(np.float32)
    logits[7] = math.nan
    case = Case(logits, Sampler(SamplingParams(seed=2)), 0, (7,))
    (short,) = made([case])
    assert case.drawn(short) == case.drawn()


@pytest.mark.parametrize("top_k", [0, 40])
def test_bias_bans_and_temperatures_of_every_size(top_k: int) -> None:
    logits = np.random.default_rng(2).normal(0, 2, 5_000).astype(np.float32)
    best = int(logits.argmax())
    off = replace(OFF, top_k=top_k, top_p=0.3 if top_k == 0 else 1.0)
    all_params = [
        replace(off, seed=1, temperature=temperature, logit_bias=bias)
        for temperature in (0.0, 5e-324, 1e-30, 1e-3, 1.0, 10.0)
        for bias in ({best: -100.0}, {3: 60.0}, {best: 90.0, 4: -90.0}, {})
    ]
    cases = [Case(logits, Sampler(params), 9) for params in all_params]
    for case, short in zip(cases, made(cases), strict=True):
        drawn = case.drawn(short)
        assert_same(drawn, case.drawn())
        assert case.sampler.params.logit_bias.get(best) != -100.0 or drawn.id != best
