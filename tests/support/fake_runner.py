"""A runner without a model: the next token is a function of all tokens before it. Drives the
engine's tests.
"""

from __future__ import annotations

import hashlib

import numpy as np

from hearth.backends.engine.runner import RunnerInfo, StepPlan, StepResult


class FakeRunner:
    """Implements `Runner` and `RunnerCache`; `tape` notes what each step computed."""

    def __init__(
        self,
        *,
        vocab=97,
        context=256,
        pool=256,
        slots=4,
        chunk=16,
        end_ids=frozenset(),
        fail_at=None,
    ):
        self.info = RunnerInfo(
            vocab, context, pool, slots, chunk, 8, frozenset(end_ids), True, True
        )
        self.cache = self
        self.held: dict[int, list[int]] = {}
        self.tape: list[StepPlan] = []
        self.fail_at = fail_at
        self.closed = False

    def step(self, plan: StepPlan) -> StepResult:
        assert 0 < plan.tokens <= self.info.chunk_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        self.tape.append(plan)
        if self.fail_at is not None and len(self.tape) == self.fail_at:
            raise RuntimeError("the fake runner was told to fail")
        logits = {}
        for row in plan.rows:
            held = self.held.setdefault(row.slot, [])
            assert row.start == len(held), "positions must be continuous"
            held.extend(row.tokens)
            if row.wants_logits:
                logits[row.slot] = self.logits(held)
        assert self.used_tokens() <= self.info.pool_tokens
        return StepResult(logits)

    def logits(self, tokens: list[int]) -> np.ndarray:
        digest = hashlib.sha256(np.array(tokens, dtype=np.int64).tobytes()).digest()
        seed = int.from_bytes(digest[:8], "little")
        return np.random.default_rng(seed).normal(size=self.info.vocab_size).astype(np.float32)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """What the model says alone, computed without any engine."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]

    def reserve(self, slot: int, tokens: int) -> bool:
        return tokens <= self.info.pool_tokens

    def trim(self, slot: int, tokens: int) -> bool:
        del self.held[slot][tokens:]
        return True

    def fork(self, source: int, target: int, tokens: int) -> None:
        self.held[target] = self.held[source][:tokens]

    def release(self, slot: int) -> None:
        self.held.pop(slot, None)

    def used_tokens(self) -> int:
        return sum(map(len, self.held.values()))

    def close(self) -> None:
        self.closed = True
