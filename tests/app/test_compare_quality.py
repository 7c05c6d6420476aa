"""Perplexity and its change, on a scripted backend whose probabilities are known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hearth.app.library.compare_quality import (
    Sample,
    bundled_sample,
    measure,
    measure_on,
    perplexity_change,
)
from hearth.backends.contract.events import Failed, Finished, Prompt, Scores, Timings
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ErrorInfo, HearthError
from hearth.quant.evaluation.errors import TextTooShort


class Letters:
    """One token a character, each as likely as `chance` says of its id."""

    def __init__(self, chance: Any, context: int = 512, begin: tuple[int, ...] = ()) -> None:
        self.chance = chance
        self.context = context
        self.begin = begin
        self.scored: list[tuple[int, ...]] = []
        self.requests: list[Request] = []
        self.answer: Finished | Failed = Finished("length", timings=Timings(decode_tok_per_s=9.0))

    async def info(self) -> Any:
        return SimpleNamespace(context=self.context, backend="native", threads=2)

    async def tokenize(self, text: str, *, special: bool = False, **_: object) -> list[int]:
        return [ord(character) for character in text]

    async def render(self, request: Request) -> Prompt:
        return Prompt("", (*self.begin, *await self.tokenize(request.text or "")))

    async def score(self, ids: Sequence[int]) -> Scores:
        self.scored.append(tuple(ids))
        return Scores(tuple(math.log(self.chance(ident)) for ident in ids[1:]))

    async def generate(self, request: Request) -> Any:
        self.requests.append(request)
        yield self.answer


def measured(model: Letters, text: str, **options: Any) -> Any:
    return asyncio.run(measure(model, Sample("text", text), **options))


def test_a_model_that_guesses_among_n_has_perplexity_n() -> None:
    quality = measured(Letters(lambda ident: 1 / 32), "x" * 2000)
    assert quality.perplexity == pytest.approx(32)
    assert quality.perplexity_error == pytest.approx(0)
    assert (quality.window_tokens, quality.decode_tok_per_s) == (512, 9.0)


def test_the_second_half_of_each_window_is_scored() -> None:
    model = Letters(lambda ident: 1 / ident, context=64)
    text = ("a" * 33 + "b" * 31) * 3 + "a" * 40
    quality = measured(model, text)
    assert quality.scored_tokens == 3 * 31
    assert quality.perplexity == pytest.approx(ord("b"))
    assert [len(ids) for ids in model.scored] == [64, 64, 64]


def test_each_window_begins_as_the_model_wants_it() -> None:
    model = Letters(lambda ident: 1 / 2, context=64, begin=(1,))
    measured(model, "a" * 127)
    assert [ids[:2] for ids in model.scored] == [(1, ord("a"))] * 2
    assert all(request.token_ids[0] == 1 for request in model.requests)
    assert all(request.ignore_eos and not request.reuse_prefix for request in model.requests)


def test_a_short_text_is_one_window_and_too_short_is_refused() -> None:
    assert measured(Letters(lambda ident: 0.5), "a" * 40).window_tokens == 40
    with pytest.raises(TextTooShort, match="31 tokens"):
        measured(Letters(lambda ident: 0.5), "a" * 31)


def test_no_more_tokens_than_asked_are_scored() -> None:
    told: list[tuple[int, int]] = []
    model = Letters(lambda ident: 0.5, context=100)
    measured(model, "a" * 1000, most_tokens=300, on_progress=lambda *values: told.append(values))
    assert told == [(100, 300), (200, 300), (300, 300)]


def test_the_change_is_known_better_than_either() -> None:
    text = "".join(chr(100 + 7 * number % 90) for number in range(1024))
    before = measured(Letters(lambda ident: 1 / ident), text)
    after = measured(Letters(lambda ident: 0.9 / ident), text)
    change, error = perplexity_change(before, after)
    assert change == pytest.approx(1 / 0.9 - 1)
    assert error == pytest.approx(0, abs=1e-9) and before.perplexity_error > 0.5
    with pytest.raises(ValueError, match=r"longer|shorter"):
        perplexity_change(before, measured(Letters(lambda ident: 0.5), text[:600]))


def test_an_impossible_token_is_no_crash() -> None:
    quality = measured(Letters(lambda ident: 1e-300, context=64), "a" * 200)
    assert quality.perplexity == pytest.approx(1e300)
    model = Letters(lambda ident: 1.0, context=64)
    model.score = lambda ids: _impossible(ids)  # type: ignore[method-assign]
    quality = measured(model, "a" * 200)
    assert quality.perplexity == math.inf and quality.facts()["perplexity"] is None


async def _impossible(ids: Sequence[int]) -> Scores:
    return Scores(tuple(-1000.0 for _ in ids[1:]))


def test_a_model_that_fails_is_told() -> None:
    model = Letters(lambda ident: 0.5)
    model.answer = Failed(ErrorInfo("worker_died", "It is gone."))
    with pytest.raises(HearthError, match="It is gone"):
        measured(model, "a" * 100)


@pytest.mark.parametrize("loaded", [True, False])
def test_only_what_it_loaded_is_unloaded(loaded: bool) -> None:
    unloaded: list[str | None] = []

    class Host:
        async def stats(self) -> Any:
            return SimpleNamespace(workers=[SimpleNamespace(path="/m.gguf")] if loaded else [])

        async def backend(self, spec: ModelSpec, session: str = "") -> Any:
            return Letters(lambda ident: 0.5)

        async def unload(self, model: str | None = None) -> int:
            unloaded.append(model)
            return 1

    asyncio.run(measure_on(Host(), ModelSpec("/m.gguf"), Sample("text", "a" * 100)))
    assert unloaded == ([] if loaded else ["/m.gguf"])


def test_the_bundled_texts_are_long_enough() -> None:
    for sample in (bundled_sample(), bundled_sample(for_guide=True)):
        assert 10_000 < len(sample.text.encode()) < 20_000
    assert bundled_sample(for_guide=True).marked and not bundled_sample().marked
