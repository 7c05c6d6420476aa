"""How settings are chosen from what was measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hearth.backends.bench.job import Job
from hearth.backends.bench.tune import Speeds, choose, preferred
from hearth.backends.errors import DoesNotFit

F16 = Speeds(
    "f16",
    prefill={(2, 512): 100.0, (2, 256): 90.0, (4, 512): 160.0},
    decode={(2, 1): 10.0, (4, 1): 9.0, (2, 8): 40.0, (4, 8): 60.0},
)


def test_the_first_is_preferred_unless_another_is_clearly_better() -> None:
    assert preferred([100.0, 102.0], lambda rate: rate) == 100.0
    assert preferred([100.0, 110.0, 111.0], lambda rate: rate) == 110.0


def test_a_choice_is_the_arithmetic_of_its_parts(job: Callable[..., Job]) -> None:
    tuned = choose([F16], job(prompt_tokens=320, gen_tokens=60), "library")
    latency, throughput = tuned.latency, tuned.throughput
    assert (latency.sessions, latency.threads, latency.batch_threads) == (1, 2, 4)
    assert latency.request_s == pytest.approx(320 / 160 + 60 / 10)
    assert (throughput.sessions, throughput.threads) == (8, 4)
    assert throughput.request_s == pytest.approx(8 * 320 / 160 + 8 * 60 / 60)
    assert throughput.generated_tok_per_s == pytest.approx(8 * 60 / 24)
    assert tuned.tried == 7 and tuned.library == "library"


def test_another_kv_type_must_be_clearly_better(job: Callable[..., Job]) -> None:
    def slower(factor: float) -> Speeds:
        return Speeds(
            "q8_0",
            {key: rate * factor for key, rate in F16.prefill.items()},
            {key: rate * factor for key, rate in F16.decode.items()},
        )

    assert choose([F16, slower(1.02)], job(), "").latency.kv_type == "f16"
    assert choose([F16, slower(1.10)], job(), "").latency.kv_type == "q8_0"


def test_nothing_measured_is_an_error(job: Callable[..., Job]) -> None:
    with pytest.raises(DoesNotFit):
        choose([Speeds("f16", {(1, 512): 1.0}, {})], job(), "")
