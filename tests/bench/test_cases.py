"""Which tests a job has, and how large they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hearth.backends.bench.cases import SLACK_TOKENS, cases, check_job, pool_tokens
from hearth.backends.bench.job import Job
from hearth.backends.bench.measure import alternate, random_prompts
from hearth.backends.errors import InvalidParameter


def test_tests_have_the_names_of_llama_bench(job: Callable[..., Job]) -> None:
    assert [case.name for case in cases(job())] == [
        *("pp8", "tg4", "tg4 @ d16"),
        *("tg2 × 1", "tg2 × 3", "tg2 × 3 shared"),
    ]


def test_only_what_was_asked_for_is_measured(job: Callable[..., Job]) -> None:
    assert [case.kind for case in cases(job(tests=("shared", "pp")))] == ["pp", "shared"]


def test_a_test_that_goes_on_needs_room_for_all_its_repeats(job: Callable[..., Job]) -> None:
    by_kind = {case.kind: case for case in cases(job())}
    assert by_kind["tg"].tokens(repeats=2) == 1 + SLACK_TOKENS + 4
    assert by_kind["depth"].tokens(repeats=2) == 16 + SLACK_TOKENS + 3 * 4
    assert by_kind["sessions"].pool_tokens(repeats=2) == 3 * 2 * (16 + SLACK_TOKENS + 3 * 2)


def test_a_pool_has_room_for_the_largest_test_in_whole_blocks(job: Callable[..., Job]) -> None:
    assert pool_tokens(list(cases(job())), repeats=2) == 768
    assert pool_tokens(list(cases(job(tests=("tg",)))), repeats=2) == 256


@pytest.mark.parametrize(
    "changes", [{"repeats": 0}, {"sessions": (4, 0)}, {"sessions": ()}, {"tests": ()}]
)
def test_what_cannot_be_measured_is_refused_by_name(
    job: Callable[..., Job], changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        check_job(job(**changes))
    assert refused.value.param in changes


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str, number: float) -> Callable[[], float]:
        def measure() -> float:
            order.append(name)
            return number

        return measure

    results = alternate([side("a", 1.0), side("b", 2.0), side("c", 3.0)], repeats=3)
    assert "".join(order) == "abccbaabc"
    assert results == ((1.0,) * 3, (2.0,) * 3, (3.0,) * 3)


def test_prompts_share_exactly_what_they_should(job: Callable[..., Job]) -> None:
    shared = next(case for case in cases(job()) if case.kind == "shared")
    first, second, third = random_prompts(shared, np.arange(5, 300))
    assert first[:14] == second[:14] == third[:14]
    assert len({first[14], second[14], third[14]}) == 3
    assert {len(first), len(second), len(third)} == {16}
    assert min(first + second + third) >= 5


def test_prompts_of_separate_sessions_differ_from_the_first_token_on(
    job: Callable[..., Job],
) -> None:
    own = next(case for case in cases(job()) if case.name == "tg2 × 3")
    assert len({prompt[0] for prompt in random_prompts(own, np.arange(300))}) == 3
