"""Measures all sides alternately: A B, B A, A B ..., so that no side gets a quieter machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hearth.backends.bench.cases import Case
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Measured, Spread

_SEED = 20_002
_T = TypeVar("_T")


class Reference(Protocol):
    """Another way to run the same weights, which the engine is compared with: greedy sessions that
    decode at the same time. No token ends a session.
    """

    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """Begin a session with each of `histories`, whose last tokens are not computed yet.

        Args:
            shared_tokens: length of the prefix that all histories have in common.
        """
        ...

    def decode(self, steps: int) -> float:
        """Seconds to decode `steps` further tokens for each session."""
        ...

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from `prompt` to the likeliest token after it."""
        ...

    def clear(self) -> None:
        """Forget all sessions."""
        ...

    def close(self) -> None:
        """Free all resources. May be called twice."""
        ...


def alternate(sides: Sequence[Callable[[], _T]], repeats: int) -> tuple[tuple[_T, ...], ...]:
    """`repeats` results of each of `sides`, in rounds whose order is reversed each time."""
    results: list[list[_T]] = [[] for _ in sides]
    for turn in range(repeats):
        order = range(len(sides))
        for side in order if turn % 2 == 0 else reversed(order):
            results[side].append(sides[side]())
    return tuple(tuple(result) for result in results)


def measure(
    case: Case, engine: EngineSide, beside: Mapping[str, Reference], repeats: int
) -> Measured:
    """Measure `case` on all sides, after one untimed measurement of each.

    All sides begin with the same tokens in each session, and compute the same number of tokens in
    each step.

    Args:
        beside: the other sides by their names; may be empty.
    """
    prompts = random_prompts(case, engine.usable_tokens)
    sides: list[EngineSide | Reference] = [engine, *beside.values()]
    is_prompt = case.gen_tokens == 0
    tokens = case.prompt_tokens if is_prompt else case.sessions * case.gen_tokens
    for side in sides:
        side.clear()
    histories: list[list[int]] = []
    cached = 0

    def begin(side: EngineSide | Reference) -> None:
        nonlocal histories
        if isinstance(side, EngineSide):
            histories = side.start(prompts, case.tokens(repeats))
        else:
            side.start(histories, case.shared_tokens)

    def rate(side: EngineSide | Reference, *, is_fresh: bool = case.fresh) -> float:
        if is_fresh:
            side.clear()
        if is_prompt:
            return tokens / side.prefill(prompts[0])
        if is_fresh:
            begin(side)
        return tokens / side.decode(case.gen_tokens)

    for side in sides:
        rate(side, is_fresh=True)
        if side is engine:
            cached = engine.cached_tokens
    rates, *others = alternate([partial(rate, side) for side in sides], repeats)
    for side in sides:
        side.clear()
    return Measured(
        case.name,
        case.kind,
        case.sessions,
        0 if case.kind in ("pp", "tg") else case.prompt_tokens,
        tokens,
        rates,
        dict(zip(beside, others, strict=True)),
        cached_tokens=cached,
    )


def median_rate(case: Case, engine: EngineSide, repeats: int) -> float:
    """Tokens per second of the engine alone, all sessions together."""
    return Spread.of(measure(case, engine, {}, repeats).engine).median


def same_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def random_prompts(case: Case, usable: NDArray[np.int64]) -> list[list[int]]:
    """A prompt for each session, of ids drawn from `usable`. The first `case.shared_tokens` are the
    same in all prompts; the rest has nothing in common.
    """
    stream = np.random.default_rng(_SEED)
    drawn = stream.choice(usable, (case.sessions, case.prompt_tokens))
    drawn[:, : case.shared_tokens] = drawn[0, : case.shared_tokens]
    if case.shared_tokens < case.prompt_tokens:
        # The first token of the rest differs, so that a chance match is not shared.
        firsts = stream.permutation(usable)[: case.sessions]
        drawn[:, case.shared_tokens] = np.resize(firsts, case.sessions)
    return [[int(token) for token in row] for row in drawn]
