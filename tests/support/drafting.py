"""Engines whose sequences have right and wrong drafts, and their invariants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import groupby

from fake_runner import FakeRunner
from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.runner import StepPlan, StepResult
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter
from hearth.backends.errors import Busy


class ScriptedDrafter(Drafter):
    """Drafts what the greedy `runner` generates, except that every `wrong_at`-th token of a
    sequence is wrong.
    """

    mode: Speculate = "draft"
    token_s = 0.0
    nbytes = 0

    def __init__(self, runner: FakeRunner, wrong_at: int = 5) -> None:
        self._runner = runner
        self._wrong_at = wrong_at

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        drafts = {}
        for sequence, length in lengths.items():
            tokens = self._runner.greedy(sequence.tokens, length)
            drafts[sequence] = Draft(
                [
                    token if at % self._wrong_at else (token + 1) % self._runner.info.vocab_size
                    for at, token in enumerate(tokens, sequence.total)
                ]
            )
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Nothing to release."""


def drafting_engine(
    runner: FakeRunner,
    clock: Callable[[], float],
    wrong_at: int = 5,
    disk: DiskTier | None = None,
) -> Engine:
    """An engine over `runner` with a `ScriptedDrafter`, for sequences that are `speculating`. The
    contents of its cache are checked within each step, and `kv.refused` counts steps that found no
    memory. Every step takes 10 ms of the clock by which it decides on drafts.
    """
    engine = Engine(
        runner,
        clock=lambda: 0.01 * len(runner.tape),
        kv_clock=clock,
        disk=disk,
        drafters=[ScriptedDrafter(runner, wrong_at)],
    )
    compute = runner.step

    def step(plan: StepPlan) -> StepResult:
        assert_only_verified(engine)
        result = compute(plan)
        assert_only_verified(engine)
        return result

    def prepare(counts: Mapping[int, int]) -> None:
        try:
            reserve(counts)
        except Busy:
            engine.kv.refused += 1
            raise

    runner.step = step
    reserve, engine.kv.prepare, engine.kv.refused = engine.kv.prepare, prepare, 0
    return engine


def assert_only_verified(engine: Engine) -> None:
    """For each running sequence, the cache holds only tokens of that sequence."""
    for sequence in engine._scheduler:
        if sequence.slot is not None:
            prefix = engine.kv._slots[sequence.slot]
            nodes = [] if prefix is None else [*prefix.node.upwards()][::-1]
            held = [token for node in nodes for token in node.tokens]
            assert held == sequence.tokens[: len(held)]


def assert_texts_are_shared(engine: Engine, shared: Seq[list[int]]) -> None:
    """Drafts from other texts use only texts of requests that share theirs."""
    past = engine._speculation._past
    past.find([])  # This moves new texts into one of the halves.
    said = [bytes(text) for text in shared]
    for half in past.halves:
        assert not half.tokens or half.tokens[-1] == -1
        for is_text, tokens in groupby(half.tokens, key=lambda token: token >= 0):
            text = bytes(tokens) if is_text else b""
            assert any(text in one for one in said)


def assert_namespaces_share_nothing(kv: KvManager) -> None:
    """Nothing that is held for one namespace is ever held for another."""
    owners: dict[object, bytes] = {}
    for prefix in [*kv._live(), *kv._kept]:
        for node in prefix.node.upwards():
            assert owners.setdefault(node, prefix.namespace) == prefix.namespace
