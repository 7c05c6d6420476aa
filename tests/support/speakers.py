"""Generations over a runner without a model, and their outputs."""

from __future__ import annotations

from hearth.backends.contract.events import Failed, Finished, Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.sampler import Sampler

GREEDY = SamplingParams(temperature=0.0)


def piece(token_id: int, *, special: bool = False) -> bytes:
    return bytes([32 + token_id % 90])


class Listener:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: list = []

    def __call__(self, event) -> None:
        self.events.append(event)

    @property
    def last(self):
        return self.events[-1]

    @property
    def over(self) -> bool:
        return bool(self.events) and isinstance(self.last, (Finished, Failed))

    @property
    def ids(self) -> list[int]:
        return [i for e in self.events if isinstance(e, Token) for i in e.ids]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Token))


def generation(
    ident,
    prompt,
    runner,
    *,
    tokens=10,
    stops=(),
    params=GREEDY,
    emit=None,
    min_tokens=0,
    ignore_eos=False,
    end_ids=None,
    **how,
) -> tuple[Generation, Listener]:
    """A generation and the listener of its events (unless `emit` takes them)."""
    listener = Listener()
    made = Generation(
        ident,
        prompt,
        Sampler(params, prompt_ids=prompt),
        Limits(tokens, min_tokens, ignore_eos, runner.info.end_ids if end_ids is None else end_ids),
        stops,
        piece,
        emit or listener,
        **how,
    )
    return made, listener


def ask(engine: Engine, runner, prompts, **how) -> list[Listener]:
    """Submit a generation for each of `prompts`, with ids from 0; returns their listeners."""
    made = [generation(ident, prompt, runner, **how) for ident, prompt in enumerate(prompts)]
    for one, _ in made:
        engine.submit(one)
    return [listener for _, listener in made]


def engine_of(runner) -> Engine:
    """An engine whose KV cache has the clock of `runner`."""
    return Engine(runner, kv_clock=runner.clock)


def drain(engine: Engine, most: int = 10_000) -> None:
    """Run steps until there is nothing to do."""
    for _ in range(most):
        if not engine.run_once() and engine._inbox.empty():
            return
    raise AssertionError("the engine never came to rest")


def at_rest(engine: Engine, runner) -> bool:
    """No request runs or waits, no running sequence holds a token, and all accounts agree."""
    engine.kv.check_integrity()
    stats = engine.stats()
    return (stats.running, stats.waiting, stats.live_tokens) == (0, 0, 0)
