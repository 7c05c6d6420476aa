"""Hearth's side of a measurement: the real engine on the real runner, without clients.

Each session is a `Generation` like that of any request: its tokens are drawn by the sampler,
converted to text and emitted as events.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import Event, Failed, Started
from hearth.backends.contract.sampling import SamplingParams, Speculate
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.speculation import Drafter
from hearth.backends.errors import InternalError, from_info

_UNHURRIED_S = 1e6
"""Target of inter-token latency, in seconds, so high that it never limits prefill."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    tokens: list[int]
    times: list[float]
    """When each token was generated, in seconds after the arrival of all requests."""


@dataclass(frozen=True, slots=True)
class Raced:
    """Result of `EngineSide.race`, measured from the time when all sessions have a token until one
    has the requested number of further tokens.
    """

    tokens: list[list[int]]
    """Tokens of each session, without the prompts."""
    new_tokens: int
    """Tokens of all sessions together in the measured time."""
    steps: int
    rows: int
    """Sessions in a step, summed over all steps."""
    depth: int
    """Tokens of the longest draft of a step, summed over all steps; 0 without drafters."""
    wall_s: float
    cpu_s: float
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    """Like `drafted`, counts by position in a draft."""

    def rate(self, clock: int) -> float:
        """Tokens per second, of wall time if `clock` is 0, of CPU time if it is 1."""
        return self.new_tokens / (self.cpu_s if clock else self.wall_s)


class EngineSide:
    """Sessions that decode at the same time on one engine.

    No token ends a session, because the raw loop does not check for end tokens either.

    Args:
        drafters: drafters for sessions that speculate.

    Attributes:
        params: sampling parameters of new sessions.
        cached_tokens: prompt tokens that were found in the KV cache.
    """

    def __init__(self, loaded: Loaded, drafters: Sequence[Drafter] = ()) -> None:
        self._runner = loaded.runner
        self._piece = loaded.tokenizer.piece
        self._engine = Engine(loaded.runner, _UNHURRIED_S, drafters=drafters)
        self._has_drafters = bool(drafters)
        self._idents = itertools.count(1)
        self._sessions: list[Generation] = []
        self._failure: Failed | None = None
        """Failure of the session that failed last."""
        self.params = SamplingParams(temperature=0.0)
        self.cached_tokens = 0

    @property
    def usable_tokens(self) -> NDArray[np.int64]:
        """Ids that prompts may consist of: all but the end tokens."""
        info = self._runner.info
        return np.setdiff1d(np.arange(info.vocab_size), np.fromiter(info.end_ids, np.int64))

    def start(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """Compute `prompts` and let each session draw a token; returns the tokens of the sessions,
        of which the last one is not computed yet.

        Prompts are computed one after the other, and sessions begin when all prompts are in the KV
        cache: otherwise the first sessions would decode while the other prompts are computed.

        Args:
            most: most tokens of a session, including the prompt.
        """
        for prompt in prompts:
            self.answer([prompt], 1)
        self._sessions.clear()
        cached = self.cached_tokens
        added = [self._new(prompt, most) for prompt in prompts]
        self._engine.submit(*added)
        while any(session.new_tokens == 0 for session in added):
            self._turn()
        self.cached_tokens = cached
        return self.histories()

    def histories(self) -> list[list[int]]:
        """The tokens of each session, prompt included."""
        return [list(session.tokens) for session in self._sessions]

    def decode(self, steps: int) -> float:
        """Seconds until each session has `steps` more tokens."""
        goals = [(session, session.new_tokens + steps) for session in self._sessions]
        began = time.perf_counter()
        while any(session.new_tokens < goal for session, goal in goals):
            self._turn()
        return time.perf_counter() - began

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from the arrival of a request with `prompt` to the end of its one token."""
        (answer,) = self.answer([prompt], 1)
        return answer.times[0]

    def answer(
        self, prompts: list[list[int]], count: int, *, reuses_prefix: bool = True
    ) -> list[Answer]:
        """`count` tokens for each of `prompts`, all at the same time.

        Args:
            reuses_prefix: prefixes that other requests computed are reused.
        """
        added = [
            self._new(prompt, len(prompt) + count, reuses_prefix=reuses_prefix)
            for prompt in prompts
        ]
        times: list[list[float]] = [[] for _ in added]
        began = time.perf_counter()
        self._engine.submit(*added)
        while not all(session.done for session in added):
            self._turn()
            now = time.perf_counter() - began
            for session, own in zip(added, times, strict=True):
                own += [now] * (session.new_tokens - len(own))
        return [
            Answer(session.tokens[session.prompt_tokens :], own)
            for session, own in zip(added, times, strict=True)
        ]

    def race(self, prompts: list[list[int]], count: int, mode: Speculate, most: int) -> Raced:
        """Run sessions with `prompts`, without drafts until all have a token, then until one
        session has `count` further tokens.

        Args:
            mode: how tokens are drafted.
            most: most tokens of a draft.
        """
        sessions = [self._new(prompt, self._runner.info.context) for prompt in prompts]
        self._engine.submit(*sessions)
        while not all(one.new_tokens for one in sessions):
            self._turn()
        states = [] if mode == "off" else [Speculating(mode, most) for _ in sessions]
        for session, state in zip(sessions, states, strict=False):
            session.speculating = state
        begun = [one.new_tokens for one in sessions]
        steps = depth = 0
        drafting = states if self._has_drafters else []
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        while all(one.new_tokens < at + count for one, at in zip(sessions, begun, strict=True)):
            sums = [sum(one.drafted) for one in drafting]
            self._turn()
            steps += 1
            if drafting:
                now = (sum(one.drafted) for one in drafting)
                depth += max(new - old for new, old in zip(now, sums, strict=True))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        drafted = summed([one.drafted for one in states])
        accepted = summed([one.accepted for one in states])
        said = [one.tokens[one.prompt_tokens :] for one in sessions]
        new_tokens = sum(map(len, said)) - sum(begun)
        self.clear()
        return Raced(
            said, new_tokens, steps, steps * len(said), depth, wall_s, cpu_s, drafted, accepted
        )

    def computed_tokens(self) -> int:
        """Tokens that went through the model so far."""
        self._engine.run_once()  # Without work, a call updates the counters.
        return self._engine.stats().computed_tokens

    def clear(self) -> None:
        """End all sessions and clear the KV cache."""
        for session in self._sessions:
            self._engine.cancel(session.id)
        self._engine.clear_cache(lambda _: None)
        self._engine.run_once()
        self._sessions.clear()
        self._failure, self.cached_tokens = None, 0

    def _new(self, prompt: list[int], most: int, *, reuses_prefix: bool = True) -> Generation:
        session = Generation(
            next(self._idents),
            prompt,
            Sampler(self.params, prompt_ids=prompt),
            Limits(most - len(prompt), 0, ignore_eos=True, end_ids=frozenset()),
            (),
            self._piece,
            self._heard,
            reuse_prefix=reuses_prefix,
        )
        self._sessions.append(session)
        return session

    def _heard(self, event: Event) -> None:
        if isinstance(event, Started):
            self.cached_tokens += event.cached_tokens
        elif isinstance(event, Failed):
            self._failure = event

    def _turn(self) -> None:
        """Run one step of the engine. Raises the error of a failed session, or `InternalError` if
        no session can continue.
        """
        worked = self._engine.run_once()
        if self._failure is not None:
            raise from_info(self._failure.error)
        if not worked:
            raise InternalError("The engine had nothing to do before all tokens were there.")


def summed(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sums of `counts` at each position, as long as the longest of them."""
    return tuple(map(sum, itertools.zip_longest(*counts, fillvalue=0)))
