"""Eight requests over a real runner, with drafts or without, and their outputs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from driven import Driven
from hearth.backends.contract.sampling import SamplingParams, Speculate
from hearth.backends.engine.drafts import Draft, Speculating
from hearth.backends.engine.medusa import TakesHeads
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter
from speakers import at_rest, drain, generation

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "seeded": SamplingParams(seed=7, temperature=0.9, logprobs=2),
    "penalties": SamplingParams(seed=7, repetition_penalty=1.3, dry_multiplier=0.8),
    "grammar": SamplingParams(temperature=0.0),
    "stops": SamplingParams(seed=7, temperature=1.5),
}
STOPS = tuple(chr(code) for code in range(32, 122, 4))
TOKENS = 40


class OddAfterEven:
    """A `Matcher`: even and odd tokens alternate; complete after 24."""

    notices = ()

    def __init__(self, vocab, taken=0):
        self._odd = np.arange(vocab) % 2 == 1
        self._taken = taken

    def copy(self):
        return OddAfterEven(self._odd.size, self._taken)

    def allows(self, token):
        return bool(self.allowed()[token])

    def allowed(self):
        return self._odd if self._taken % 2 else ~self._odd

    def accept(self, token):
        assert self.allows(token), "only what was drawn"
        self._taken += 1

    @property
    def complete(self):
        return self._taken >= 24


class Oracle(Drafter):
    """Drafts the tokens that will be generated, except every third one."""

    mode: Speculate = "draft"
    token_s = 0.0
    nbytes = 0

    def __init__(self, said: list[list[int]]) -> None:
        self._said = said

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        drafts = {}
        for sequence, length in lengths.items():
            at = sequence.total - sequence.prompt_tokens
            coming = self._said[sequence.id][at : at + length]
            drafts[sequence] = Draft(
                [token if at % 3 else max(token - 1, 0) for at, token in enumerate(coming, at)]
            )
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Nothing to release."""


class OracleTrees(Drafter):
    """Drafts random trees, some of whose paths are the tokens that will be generated."""

    mode: Speculate = "medusa"
    token_s = 0.0
    nbytes = 0

    def __init__(self, said: list[list[int]]) -> None:
        self._said = said
        self._random = random.Random(3)

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        return {sequence: self._tree(sequence, length) for sequence, length in lengths.items()}

    def _tree(self, sequence: Sequence, length: int) -> Draft:
        at = sequence.total - sequence.prompt_tokens
        coming = self._said[sequence.id][at : at + length]
        draft, depths = Draft([], parents=[]), [0]
        right = 0  # The last correct node of the path.
        while len(draft.tokens) < min(length, len(coming)):
            parent = self._random.choice([right, self._random.randrange(len(depths))])
            siblings = {
                token
                for token, other in zip(draft.tokens, draft.parents, strict=True)
                if other == parent
            }
            wanted = coming[depths[parent]] if parent == right else 9
            token = wanted if self._random.random() < 0.6 else self._random.randrange(40)
            if token in siblings:
                continue
            draft.tokens.append(token)
            draft.parents.append(parent)
            depths.append(depths[parent] + 1)
            if parent == right and token == wanted:
                right = len(draft.tokens)
        return draft

    def forget(self, sequence: Sequence) -> None:
        """Nothing to release."""


def assert_drafts_change_nothing(runner: Driven, kind: str) -> None:
    """Check that the output is the same with right drafts, wrong drafts, trees of both (if the
    runner takes trees) and n-grams, and that some of each occurred.
    """
    plain, _ = _said(runner, kind, None, [])
    ids = [ids for ids, _ in plain]
    modes: dict[str, list[Drafter]] = {
        "draft": [Oracle(ids)],
        "ngram": [],
        "medusa": [OracleTrees(ids)],
    }
    for mode, drafters in modes.items():
        if mode == "medusa" and not isinstance(runner.runner, TakesHeads):
            continue
        said, stats = _said(runner, kind, mode, drafters)
        assert [ids for ids, _ in said] == [ids for ids, _ in plain]
        for (_, logprobs), (_, expected) in zip(said, plain, strict=True):
            assert [one.id for one in logprobs] == [one.id for one in expected]
            assert [one.logprob for one in logprobs] == pytest.approx(
                [one.logprob for one in expected], abs=1e-4
            )
        if mode != "ngram":
            assert 0 < sum(stats.accepted_tokens) < sum(stats.drafted_tokens)


def _said(runner: Driven, kind: str, mode: Any, drafters: list[Drafter]) -> tuple[list[Any], Any]:
    engine = runner.engine(drafters=drafters)
    heard = []
    for ident in range(8):
        # The end repeats the beginning, so that n-grams are found.
        prompt = [*range(5 + ident, 25 + ident), *range(5 + ident, 15 + ident)]
        params = KINDS[kind]
        made, listener = generation(
            ident,
            prompt,
            runner.runner,
            tokens=TOKENS,
            end_ids=frozenset(),
            stops=STOPS if kind == "stops" else (),
            matcher=OddAfterEven(runner.info.vocab_size) if kind == "grammar" else None,
            params=replace(params, seed=ident if params.seed else None),
            speculating=None if mode is None else Speculating(mode, 7 if mode == "medusa" else 3),
        )
        engine.submit(made)
        heard.append(listener)
    drain(engine)
    assert at_rest(engine, runner.runner)
    said = [
        (one.ids, [logprob for e in one.events for logprob in getattr(e, "logprobs", None) or ()])
        for one in heard
    ]
    if kind == "stops":
        assert any(one.last.stop for one in heard)
    else:
        assert all(len(ids) == (24 if kind == "grammar" else TOKENS) for ids, _ in said)
    return said, engine.stats()
