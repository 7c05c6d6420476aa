"""What travels between a front end and the measuring process, and the numbers in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace

import msgspec
import pytest

from hearth.backends.bench.job import (
    Ablated,
    Choice,
    Job,
    Measured,
    Message,
    Progress,
    Setup,
    Skipped,
    Spread,
    Tuned,
)
from hearth.backends.contract.loaded import ModelInfo

INFO = ModelInfo(
    **dict.fromkeys(ModelInfo.__slots__, 0) | dict.fromkeys(("name", "path", "kv_type"), "x")
    | dict.fromkeys(("backend", "backend_version", "architecture", "quantization"), "x")
    | {"has_chat_template": False, "template_sha256": "", "notices": (), "load_s": 0.5,
       "capabilities": ()}
)  # fmt: skip
SETUP = Setup(INFO, 512, 512, 1024, "auto", 100, mixture=False, read_bytes_per_s=1000.0)
CHOICE = Choice(1, 2, 512, "f16", 4, 100.0, 20.0, 1.5, 30.0)
MEASURED = Measured("tg4 × 2", "sessions", 2, 8, 8, (10.0, 30.0, 20.0), {"raw": (20.0, 20.0, 40.0)})


@pytest.mark.parametrize(
    "message",
    [
        Progress("pp512"),
        SETUP,
        MEASURED,
        Skipped("tg", "too long"),
        Tuned(CHOICE, CHOICE, 7, "llama.cpp"),
        Ablated("KV cache", "C, Q4_K", (0.1,), (0.2,), (0.3,), (9.0,), 70, 4, 3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_survives_its_way(message: Message) -> None:
    assert msgspec.convert(json.loads(json.dumps(asdict(message))), type(message)) == message


def test_a_job_survives_its_way(job: Callable[..., Job]) -> None:
    assert msgspec.convert(json.loads(json.dumps(asdict(job(tune=True)))), Job) == job(tune=True)


def test_a_spread_has_the_median_and_the_sample_deviation() -> None:
    spread = Spread.of((1.0, 9.0, 2.0))
    assert (spread.median, spread.low, spread.high) == (2.0, 1.0, 9.0)
    assert spread.deviation == pytest.approx(math.sqrt(19.0))
    assert Spread.of((3.0,)) == Spread(3.0, 0.0, 3.0, 3.0)


def test_the_ratio_is_taken_round_by_round() -> None:
    ratio = MEASURED.ratio("raw")
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.5, 1.5)


def test_the_share_of_bandwidth_counts_the_weights_once_a_step() -> None:
    # 20 tokens a second of two sessions: 10 steps of 100 bytes, and 1,000 bytes can be read.
    assert MEASURED.bandwidth_share(SETUP) == pytest.approx(1.0)


def test_prefill_and_mixtures_of_experts_have_no_share_of_bandwidth() -> None:
    assert replace(MEASURED, kind="pp").bandwidth_share(SETUP) is None
    assert MEASURED.bandwidth_share(replace(SETUP, mixture=True)) is None
