"""Pinned prefixes over every kind of llama.cpp memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hearth.backends.llamacpp.load import Loaded
from speakers import at_rest, drain, generation

SYSTEM = [(k * 7) % 251 for k in range(70)]


@pytest.mark.parametrize("model", ["f32_model", "hybrid_model", "window_model"])
def test_what_is_pinned_stays_and_is_gone_on_from_exactly(
    load: Callable[..., Loaded], request: pytest.FixtureRequest, model: str
) -> None:
    path = request.getfixturevalue(model)
    runner = load(path, context=256, max_sessions=1, kv_pool="static").runner
    engine = runner.engine()

    def ask(prompt: list[int], **how: object) -> tuple[int, list[int]]:
        """The number of tokens that were found, and the output."""
        made, heard = generation(1, prompt, runner, tokens=8, ignore_eos=True, **how)
        engine.submit(made)
        drain(engine)
        return heard.last.usage.cached_tokens, heard.ids

    found, said = ask([*SYSTEM, 1, 2, 3], pins=((64, 60.0), (70, 60.0)))
    assert (found, engine.stats().pinned_tokens) == (0, 70)
    for seed in range(2, 40):
        ask([(seed * k + seed) % 251 for k in range(120)])
    assert ask([*SYSTEM, 1, 2, 3]) == (70, said)
    other = [*SYSTEM[:64], 9, 8, 7]
    found, said = ask(other)
    assert found == 64
    assert ask(other, reuse_prefix=False) == (0, said)
    assert at_rest(engine, runner)
