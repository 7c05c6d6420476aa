"""Many sessions over the bundled model in exact mode, and what a bare loop generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.engine import Engine
from raw_loop import RawModel
from speakers import at_rest, drain, generation

NO_END = frozenset[int]()  # A raw loop knows of no end.

Truth = list[tuple[list[int], list[int]]]
"""Prompts, and the tokens after each of them."""
RunnerOf = Callable[..., Driven]


def said_by_a_raw_loop(path: Path, prompts: Sequence[list[int]], tokens: int) -> Truth:
    raw = RawModel(path)
    try:
        return [(prompt, raw.greedy(prompt, tokens)) for prompt in prompts]
    finally:
        raw.close()


def encoded(open_model: Callable[[ModelSpec], Any], path: Path, texts: Sequence[str]) -> Any:
    """The prompts of `texts`."""
    loaded = open_model(ModelSpec(str(path)))
    try:
        return [loaded.tokenizer.encode(text, special=False, add_bos=True) for text in texts]
    finally:
        loaded.runner.close()


@contextmanager
def runners(
    open_model: Callable[[ModelSpec], Any], path: Path, exact: ModelSettings
) -> Iterator[RunnerOf]:
    """`make(**settings)`: a runner of `path`; they are closed at the end."""
    opened: list[Any] = []

    def make(**changes: Any) -> Driven:
        opened.append(open_model(ModelSpec(str(path), settings=replace(exact, **changes))))
        return Driven(opened[-1].runner)

    yield make
    for loaded in opened:
        loaded.runner.close()


def ask_all(
    runner: Driven, prompts: Sequence[list[int]], tokens: int
) -> tuple[list[list[int]], Engine]:
    """What each of `prompts` is answered when all are asked at once."""
    engine = runner.engine()
    heard = []
    for ident, prompt in enumerate(prompts):
        made, listener = generation(ident, prompt, runner, tokens=tokens, end_ids=NO_END)
        engine.submit(made)
        heard.append(listener)
    drain(engine, 100_000)
    assert at_rest(engine, runner)
    return [listener.ids for listener in heard], engine


def check_together(runner: Driven, truth: Truth, *, preempted: bool) -> None:
    """Require the answers of `truth` from requests at the same time."""
    together, engine = ask_all(runner, [prompt for prompt, _ in truth], len(truth[0][1]))
    assert together == [said for _, said in truth]
    preemptions = engine.stats().preemptions
    assert (preemptions > 0) == preempted, f"{preemptions} preemptions"


def check_prefixes_of_a_running_one(runner: Driven, truth: Truth) -> None:
    """Require the answers of `truth` from requests that begin with what another, which still runs,
    has computed.
    """
    for prompt, said in truth:
        engine = runner.engine()
        donor, _ = generation(1, prompt, runner, tokens=200, end_ids=NO_END)
        engine.submit(donor)
        while donor.new_tokens < 20:
            engine.run_once()
        # What the donor has said so far, as a prompt: all but its last token is in the memory.
        heard = []
        for ident, length in enumerate((1, 10, 18), 2):
            made, listener = generation(
                ident, prompt + said[:length], runner, tokens=len(said) - length, end_ids=NO_END
            )
            engine.submit(made)
            heard.append((length, made, listener))
        while not all(listener.over for _, _, listener in heard):
            engine.run_once()
        assert not donor.done
        for length, made, listener in heard:
            assert made.cached == len(prompt) + length - 1
            assert said[:length] + listener.ids == said
        engine.cancel(1)
        drain(engine)
