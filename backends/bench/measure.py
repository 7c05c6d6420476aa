"""All sides measured in turns: A B, B A, A B ..., so that none has the quieter machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hearth.backends.bench.cases import Case
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Measured
from hearth.backends.bench.reference import Reference

_SEED = 20_002


def alternate(sides: Sequence[Callable[[], float]], repeats: int) -> tuple[tuple[float, ...], ...]:
    """`repeats` results of each of `sides`, in rounds whose order turns each time."""
    results: list[list[float]] = [[] for _ in sides]
    for turn in range(repeats):
        order = range(len(sides))
        for side in order if turn % 2 == 0 else reversed(order):
            results[side].append(sides[side]())
    return tuple(tuple(result) for result in results)


def measure(
    case: Case, engine: EngineSide, beside: Mapping[str, Reference], repeats: int
) -> Measured:
    """`case` on all sides, after one untimed measurement of each.

    All begin with the same tokens in each session, and compute the same number in each step.

    Args:
        beside: the other sides by their names; may be empty.
    """
    prompts = random_prompts(case, engine.usable_tokens)
    _clear(engine, beside)
    if case.gen_tokens == 0:
        return _measure_prompt(case, prompts[0], engine, beside, repeats)
    histories = engine.start(prompts, case.shared_tokens, case.tokens(repeats))
    cached = engine.cached_tokens
    for one in beside.values():
        one.start(histories, case.shared_tokens)
    tokens = case.sessions * case.gen_tokens

    def engine_rate() -> float:
        if case.fresh:
            engine.clear()
            engine.start(prompts, case.shared_tokens, case.tokens(repeats))
        return tokens / engine.decode(case.gen_tokens)

    def rate(one: Reference) -> float:
        if case.fresh:
            one.clear()
            one.start(histories, case.shared_tokens)
        return tokens / one.decode(case.gen_tokens)

    rates, others = _rates(engine_rate, rate, beside, repeats)
    _clear(engine, beside)
    return Measured(
        case.name,
        case.kind,
        case.sessions,
        0 if case.kind == "tg" else case.prompt_tokens,
        tokens,
        rates,
        others,
        cached_tokens=cached,
    )


def _measure_prompt(
    case: Case,
    prompt: list[int],
    engine: EngineSide,
    beside: Mapping[str, Reference],
    repeats: int,
) -> Measured:
    def rate(side: EngineSide | Reference) -> float:
        side.clear()
        return len(prompt) / side.prefill(prompt)

    rates, others = _rates(lambda: rate(engine), rate, beside, repeats)
    _clear(engine, beside)
    return Measured(case.name, case.kind, 1, 0, len(prompt), rates, others)


def _rates(
    engine_rate: Callable[[], float],
    rate: Callable[[Reference], float],
    beside: Mapping[str, Reference],
    repeats: int,
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """`repeats` rates of the engine and of each side beside it, after one that does not count."""
    sides = [engine_rate, *(lambda one=one: rate(one) for one in beside.values())]
    for side in sides:
        side()
    rates, *others = alternate(sides, repeats)
    return rates, dict(zip(beside, others, strict=True))


def _clear(engine: EngineSide, beside: Mapping[str, Reference]) -> None:
    engine.clear()
    for one in beside.values():
        one.clear()


def random_prompts(case: Case, usable: NDArray[np.int64]) -> list[list[int]]:
    """A prompt for each session: ids drawn from `usable`, the first `case.shared_tokens` the same
    in all, and else nothing in common.
    """
    stream = np.random.default_rng(_SEED)
    drawn = stream.choice(usable, (case.sessions, case.prompt_tokens))
    drawn[:, : case.shared_tokens] = drawn[0, : case.shared_tokens]
    if case.shared_tokens < case.prompt_tokens:
        # Different from the first on: a chance match must not be shared.
        firsts = stream.permutation(usable)[: case.sessions]
        drawn[:, case.shared_tokens] = np.resize(firsts, case.sessions)
    return [[int(token) for token in row] for row in drawn]
