"""Tokens that are drawn on the device are those that the sampler draws in numpy."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.draw_spec import Drawn
from hearth.backends.engine.sampler import Sampler
from hearth.backends.errors import InternalError, InvalidParameter
from hearth.backends.native.candidates import largest
from hearth.backends.native.drawing import draw

Logits = NDArray[np.float32]
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0.0)
DTYPES = (torch.float64, torch.float32)
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


@dataclass
class Case:
    """One row: its logits, the sampler that should draw from them, and where."""

    logits: Logits
    sampler: Sampler
    position: int
    banned: Collection[int] = ()

    def drawn(self) -> Drawn:
        return self.sampler.draw(self.logits, self.position, banned=self.banned)


def draw_all(
    cases: Sequence[Case], device: str = "cpu", dtype: torch.dtype = torch.float64
) -> list[Drawn | None]:
    """All of `cases` as one batch."""
    logits = torch.from_numpy(np.stack([case.logits for case in cases])).to(device)
    before = logits.clone()
    specs = [case.sampler.spec(case.position, case.banned) for case in cases]
    found = draw(logits, specs, dtype=dtype)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num()), "the logits were changed"
    return found


def assert_same(found: Drawn | None, wanted: Drawn) -> None:
    assert found is not None
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
        if kind == 0:  # As of bfloat16: many are equal.
            logits = np.round(logits * 4) / 4
        elif kind == 1:
            logits[random.random(self._size) < 0.3] = -math.inf
        return logits.astype(np.float32)

    def _tokens(self, count: int) -> list[int]:
        """From a few, so that they repeat."""
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
            top_k=one([0, 0, 1, 20, 40, 40, 1000, self._size - 1, 10**6]),
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
@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "single"])
@pytest.mark.parametrize(("size", "batches"), [(100, 60), (5_000, 25), (50_000, 5)])
def test_every_token_is_the_one_that_the_sampler_draws(
    size: int, batches: int, dtype: torch.dtype, device: str
) -> None:
    made = Cases(size, seed=size)
    left = 0
    for _ in range(batches):
        cases = [made.case() for _ in range(24)]
        for case, found in zip(cases, draw_all(cases, device, dtype), strict=True):
            if found is None:
                left += 1
            else:
                assert_same(found, case.drawn())
    # Most of them because of XTC with a threshold of 0, where all depends on what rounds to 0.
    assert left < batches * 24 * 0.2


@DEVICES
def test_usual_settings_leave_nothing_to_the_sampler(device: str) -> None:
    random = np.random.default_rng(8)
    logits = random.normal(0, 3, (200, 30_000)).astype(np.float32)
    some = [SamplingParams(), replace(OFF, top_k=100), GREEDY, replace(OFF, min_p=0.1)]
    cases = [
        Case(row, Sampler(replace(some[number % 4], seed=number)), number)
        for number, row in enumerate(logits)
    ]
    for case, found in zip(cases, draw_all(cases, device), strict=True):
        assert_same(found, case.drawn())


@DEVICES
def test_a_batch_draws_what_each_row_draws_alone(device: str) -> None:
    made = Cases(5_000, seed=3)
    cases = [made.case() for _ in range(40)]
    together = draw_all(cases, device)
    for case, found in zip(cases, together, strict=True):
        (alone,) = draw_all([case], device)
        if alone is not None and found is not None:
            assert_same(found, alone)


@DEVICES
def test_a_plain_greedy_batch(device: str) -> None:
    logits = np.random.default_rng(1).integers(0, 4, (30, 2_000)).astype(np.float32)
    cases = [Case(row, Sampler(GREEDY), 5) for row in logits]
    found = draw_all(cases, device)
    assert [drawn.id for drawn in found if drawn] == [int(row.argmax()) for row in logits]


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
@pytest.mark.parametrize("params", [OFF, GREEDY, SamplingParams()], ids=["off", "greedy", "usual"])
@pytest.mark.parametrize("kind", ["banned", "empty", "nan", "infinite"])
def test_what_cannot_be_drawn_from_is_left_to_the_sampler_and_harms_no_other(
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
    first, bad, last = draw_all(cases, device)
    assert bad is None
    with pytest.raises(error):
        cases[1].drawn()
    assert_same(first, cases[0].drawn())
    assert_same(last, cases[2].drawn())


def test_what_is_not_finite_and_banned_does_no_harm() -> None:
    logits = np.random.default_rng(0).normal(0, 2, 500).astype(np.float32)
    logits[7] = math.nan
    case = Case(logits, Sampler(replace(OFF, seed=2)), 0, (7,))
    (found,) = draw_all([case])
    assert found is None or found.id == case.drawn().id


def test_a_draw_on_a_boundary_is_left_to_the_sampler() -> None:
    # Half of eight equal candidates are exactly four: rounding decides about the fifth.
    case = Case(np.zeros(8, dtype=np.float32), Sampler(replace(OFF, top_p=0.5)), 0)
    assert draw_all([case]) == [None]


def test_bias_bans_and_temperatures_of_every_size() -> None:
    logits = np.random.default_rng(2).normal(0, 2, 300).astype(np.float32)
    best = int(logits.argmax())
    all_params = [
        replace(OFF, seed=1, temperature=temperature, logit_bias=bias)
        for temperature in (0.0, 5e-324, 1e-30, 1e-3, 1.0, 10.0)
        for bias in ({best: -100.0}, {3: 60.0}, {})
    ]
    cases = [Case(logits, Sampler(params), 9) for params in all_params]
    for case, found in zip(cases, draw_all(cases), strict=True):
        assert_same(found, case.drawn())
        if case.sampler.params.logit_bias.get(best):
            assert found is not None and found.id != best


@DEVICES
@pytest.mark.parametrize("count", [1, 3, 20, 999, 1_000, 2_000])
def test_the_largest_are_those_with_the_lowest_ids_of_equals(count: int, device: str) -> None:
    values = np.random.default_rng(4).integers(-3, 4, (20, 1_000)).astype(np.float32)
    values[0] = -math.inf
    values[1, ::2] = -math.inf
    found = largest(torch.from_numpy(values).to(device), count).cpu().numpy()
    wanted = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(found, wanted)
