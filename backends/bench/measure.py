"""Two sides measured in pairs: A B, B A, A B ..., so that neither has the quieter machine; or the
engine alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hearth.backends.bench.cases import Case
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Measured
from hearth.backends.bench.raw_llama import RawLoop

_SEED = 20_002


def alternate(
    first: Callable[[], float], second: Callable[[], float], repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`repeats` results of each, in pairs whose order turns each time."""
    results: dict[int, list[float]] = {0: [], 1: []}
    sides = (first, second)
    for turn in range(repeats):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            results[side].append(sides[side]())
    return tuple(results[0]), tuple(results[1])


Side = EngineSide | RawLoop


def measure(case: Case, engine: EngineSide, raw: RawLoop | None, repeats: int) -> Measured:
    """`case` on both sides, or on the engine alone, after one untimed measurement of each.

    Both begin with the same tokens in each session, and compute the same number in each step.
    """
    prompts = random_prompts(case, engine.usable_tokens)
    _clear(engine, raw)
    if case.gen_tokens == 0:
        return _measure_prompt(case, prompts[0], engine, raw, repeats)
    histories = engine.start(prompts, case.shared_tokens, case.tokens(repeats))
    cached = engine.cached_tokens
    if raw is not None:
        raw.start(histories, case.shared_tokens)

    def rate(side: Side) -> float:
        if case.fresh:
            side.clear()
            if isinstance(side, EngineSide):
                side.start(prompts, case.shared_tokens, case.tokens(repeats))
            else:
                side.start(histories, case.shared_tokens)
        return case.sessions * case.gen_tokens / side.decode(case.gen_tokens)

    rates = _rates(rate, engine, raw, repeats)
    _clear(engine, raw)
    return Measured(
        case.name,
        case.kind,
        case.sessions,
        0 if case.kind == "tg" else case.prompt_tokens,
        case.sessions * case.gen_tokens,
        *rates,
        cached_tokens=cached,
    )


def _measure_prompt(
    case: Case, prompt: list[int], engine: EngineSide, raw: RawLoop | None, repeats: int
) -> Measured:
    def rate(side: Side) -> float:
        side.clear()
        return len(prompt) / side.prefill(prompt)

    rates = _rates(rate, engine, raw, repeats)
    _clear(engine, raw)
    return Measured(case.name, case.kind, 1, 0, len(prompt), *rates)


def _rates(
    rate: Callable[[Side], float], engine: EngineSide, raw: RawLoop | None, repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`repeats` rates of each side that there is, after one that does not count."""
    rate(engine)
    if raw is None:
        return tuple(rate(engine) for _ in range(repeats)), ()
    rate(raw)
    return alternate(lambda: rate(engine), lambda: rate(raw), repeats)


def _clear(engine: EngineSide, raw: RawLoop | None) -> None:
    engine.clear()
    if raw is not None:
        raw.clear()


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
