"""A runner without a model: the next token is a function of all tokens before it, so that a wrong
cache hit gives a wrong text. Used by the engine's tests.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from fake_store import FakeState, FakeStore, Kind
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.kv.manager import KvLimits
from hearth.backends.engine.kv.offload import WORTH_MOVING
from hearth.backends.engine.runner import RunnerInfo, RunnerLost, StepPlan, StepResult
from hearth.backends.errors import Busy, InternalError, prompt_too_long


class FakeRunner:
    """Implements `Runner` over a `FakeStore`; raises AssertionError where a plan breaks the
    contract.

    `tape` records every plan, `computed_tokens` counts the tokens of plans that were computed.

    Args:
        vocab: tokens in the vocabulary.
        context: maximum tokens of one sequence.
        pool: maximum tokens of all sequences.
        slots: sequences that run at the same time.
        chunk: maximum tokens of a step.
        end_ids: end-of-generation tokens.
        fail_at: the step (1 is the first) that fails; memories without a past lose the contents of
            the rows' slots.
        lose_at: the step at which the runner is lost.
        busy_at: the step that finds no memory.
        kept_sequences: ids in addition to those of the slots.
        kept_tokens: maximum cells that kept prefixes alone may hold; None: half of the pool.
        kind: of memory, see `FakeStore`.
        can_save: whether sequences can be saved.
        max_outputs: maximum rows of logits in one step; None: as many as tokens.
        beside: number of polls after which a background prefill is complete; None: no background
            prefill.
        beside_fails: whether background prefills fail.
        slices_texts: whether texts can be computed in slices, and so be longer than a step.
        kept_while_running: maximum cells of kept prefixes that stay in the pool while sequences
            run.
        worth_moving, part_tokens: see `KvLimits`.
        most_offloaded, budget, state_bytes, on_copy, available_bytes, grows_after: see `FakeStore`.
        clock: seconds, for the KV cache of `engine_of`.
    """

    def __init__(
        self,
        *,
        vocab: int = 97,
        context: int = 256,
        pool: int = 256,
        slots: int = 4,
        chunk: int = 16,
        end_ids: frozenset[int] | set[int] = frozenset(),
        fail_at: int | None = None,
        lose_at: int | None = None,
        busy_at: int | None = None,
        kept_sequences: int = 8,
        kept_tokens: int | None = None,
        kind: Kind = "full",
        can_save: bool = True,
        max_outputs: int | None = None,
        beside: int | None = None,
        beside_fails: bool = False,
        tile: int = 1,
        mixed_tokens: int | None = None,
        kept_while_running: int | None = None,
        worth_moving: int = WORTH_MOVING,
        part_tokens: int = 16,
        allocated: int | None = None,
        grows_after: int | None = None,
        slices_texts: bool = False,
        concurrent_text_tokens: int | None = None,
        most_offloaded: int | None = None,
        budget: int | None = None,
        state_bytes: int = 0,
        available_bytes: Callable[[], int] | None = None,
        on_copy: Callable[[int], None] = lambda tokens: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.store = FakeStore(
            slots + kept_sequences,
            pool,
            kind=kind,
            can_save=can_save,
            allocated=allocated,
            most_offloaded=most_offloaded,
            budget=budget,
            state_bytes=state_bytes,
            on_copy=on_copy,
            available_bytes=available_bytes,
            grows_after=grows_after,
        )
        self.limits = KvLimits(
            slots=slots,
            pool_tokens=pool,
            context=context,
            kept_tokens=pool // 2 if kept_tokens is None else kept_tokens,
            kept_while_running=kept_while_running,
            part_tokens=part_tokens,
            worth_moving=worth_moving,
        )
        self.background = None if beside is None else self
        self.info = RunnerInfo(
            vocab_size=vocab,
            context=context,
            pool_tokens=pool,
            max_sequences=slots,
            max_batch_tokens=chunk,
            max_outputs=max(slots, chunk) if max_outputs is None else max_outputs,
            kv_bytes_per_token=self.store.token_bytes,
            state_bytes=state_bytes,
            end_ids=frozenset(end_ids),
            keeps_past=self.store.keeps_past,
            can_roll_back=self.store.keeps_past,
            embedding_width=16,
            can_rank=True,
            slices_texts=slices_texts,
            concurrent_text_tokens=concurrent_text_tokens,
            tile=tile,
            mixed_tokens=mixed_tokens,
        )
        self.tape: list[StepPlan] = []
        self.computed_tokens = 0
        self.side: FakeBackgroundPrompt | None = None
        self.sliced: FakeSlicedText | None = None
        self.concurrent: FakeSlicedText | None = None
        """The last text that was begun."""
        self._beside = beside
        self._beside_fails = beside_fails
        self.fail_at = fail_at
        self.lose_at = lose_at
        self.busy_at = busy_at
        self.closed = False
        self._given: list[np.ndarray] = []

    def step(self, plan: StepPlan) -> StepResult:
        for row in plan.rows:
            held = self.store.tokens(row.handle)
            assert row.start == len(held), "positions must be continuous"
        assert plan.cells == self.store.cells
        assert plan.cells + plan.tokens <= self.info.pool_tokens, "not enough was reserved"
        for array in self._given:
            array.fill(np.nan)  # Logits are valid only until the next step.
        self._given = []
        self._record(plan)
        if len(self.tape) == self.fail_at:
            raise InternalError("The fake runner was told to fail.", lost_slots=self._lose(plan))
        logits = {}
        for row in plan.rows:
            self.store.compute(row.handle, row.tokens)
            self.computed_tokens += len(row.tokens)
            if row.outputs:
                logits[row.slot] = self._outputs(self.store.tokens(row.handle), row.outputs)
        return StepResult(logits)

    @property
    def beside_bytes(self) -> int:
        side = self.side
        return 0 if side is None or side.taken else 8 * len(side.tokens)

    def interrupt(self, wanted: bool) -> None:
        """Recorded in a flag, which `step` ignores."""
        self.interrupted = wanted

    def room_for(self, tokens: int, held: int) -> bool:
        return self.side is None or self.side.over

    def begin(
        self, tokens: Seq[int], begun: FakeState | None, held: int, done: Callable[[], None]
    ) -> FakeBackgroundPrompt:
        assert held < len(tokens), "nothing is left to compute"
        if held:
            assert begun is not None and list(begun.tokens) == list(tokens[:held])
        assert self._beside is not None
        how = {"held": held, "fails": self._beside_fails}
        self.side = FakeBackgroundPrompt(self, tokens, done, self._beside, **how)
        return self.side

    def logits(self, tokens: Seq[int]) -> np.ndarray:
        """The logits after `tokens`: [vocab] float32."""
        generator = np.random.default_rng(_seed(tokens))
        return generator.normal(size=self.info.vocab_size).astype(np.float32)

    def greedy(self, prompt: Seq[int], count: int) -> list[int]:
        """The greedy output of the model, computed without an engine."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]

    def embed(self, texts: Seq[Seq[int]], pooling: Pooling) -> np.ndarray:
        self._check_texts(texts)
        shape = (len(texts), self.info.embedding_width)
        return np.array([self.vector(text, pooling) for text in texts]).reshape(shape)

    def rank(self, texts: Seq[Seq[int]]) -> np.ndarray:
        self._check_texts(texts)
        return np.array([self.score(text) for text in texts], dtype=np.float32)

    def begin_text(
        self, text: Seq[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> FakeSlicedText:
        assert self.info.slices_texts
        sliced = FakeSlicedText(self, text, pooling)
        sliced.ready = ready
        most = self.info.concurrent_text_tokens
        sliced.is_concurrent = most is not None and len(text) > most
        before = self.concurrent if sliced.is_concurrent else self.sliced
        assert before is None or before.closed, "one at a time"
        if sliced.is_concurrent:
            self.concurrent = sliced
        else:
            self.sliced = sliced
        return sliced

    def close(self) -> None:
        self.closed = True

    def vector(self, text: Seq[int], pooling: Pooling) -> np.ndarray:
        """[embedding_width], of length 1."""
        vector = np.random.default_rng(_seed(text, pooling)).normal(size=self.info.embedding_width)
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def score(self, text: Seq[int]) -> np.float32:
        """The score of `text`, as an answer to its query."""
        return np.float32(np.random.default_rng(_seed(text, "rank")).normal())

    def _check_texts(self, texts: Seq[Seq[int]]) -> None:
        for text in texts:
            if len(text) > self.info.max_batch_tokens:
                raise prompt_too_long("texts", len(text), self.info.max_batch_tokens)

    def _record(self, plan: StepPlan) -> None:
        info = self.info
        assert not self.closed
        assert 0 < plan.tokens <= info.max_batch_tokens
        assert sum(row.outputs for row in plan.rows) <= info.max_outputs
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "one row a slot"
        for row in plan.rows:
            assert row.tokens and 0 <= row.outputs <= len(row.tokens)
            assert all(0 <= token < info.vocab_size for token in row.tokens)
            assert row.start + len(row.tokens) <= info.context
        self.tape.append(plan)
        if len(self.tape) == self.lose_at:
            raise RunnerLost("the fake runner was told to get lost")
        if len(self.tape) == self.busy_at:
            raise Busy("The fake runner was told to be busy.", retry_after_s=1.0)

    def _lose(self, plan: StepPlan) -> list[int]:
        """The slots of `plan` that are empty after a failure."""
        if self.store.keeps_past:
            return []
        lost = [row for row in plan.rows if row.start]
        for row in lost:
            self.store.cut(row.handle, 0)
        return [row.slot for row in lost]

    def _outputs(self, held: list[int], outputs: int) -> np.ndarray:
        """Logits after each of the last tokens of `held`: [outputs, vocab], read-only."""
        ends = range(len(held) - outputs + 1, len(held) + 1)
        made = np.stack([self.logits(held[:end]) for end in ends])
        self._given.append(made)
        view = made.view()
        view.flags.writeable = False
        return view


class FakeSlicedText:
    """Implements `SlicedText`; `slices` are the sizes that were computed, and `left_s` the seconds
    that each had. If `is_ready` is set to False, a test calls `ready`. A slice of a text that
    `is_concurrent` is complete when a test calls `end_slice`.
    """

    is_ready = True
    max_tokens = 64

    def __init__(self, runner: FakeRunner, text: Seq[int], pooling: Pooling | None) -> None:
        self.slices: list[int] = []
        self.left_s: list[float] = []
        self.closed = False
        self.is_concurrent = False
        self.ready: Callable[[], None] = lambda: None
        self._runner = runner
        self._text = text
        self._pooling = pooling
        self._begun = 0

    @property
    def computed(self) -> int:
        return sum(self.slices)

    def compute(self, tokens: int, left_s: Callable[[], float] | None = None) -> np.ndarray | None:
        assert self.is_ready and not self.closed and tokens > 0
        self.left_s.append(math.inf if left_s is None else left_s())
        left = len(self._text) - self.computed
        if self.is_concurrent and left:
            self._begun, self.is_ready = min(tokens, self.max_tokens, left), False
            return None
        self.slices.append(min(tokens, self.max_tokens, left))
        if self.computed < len(self._text):
            return None
        if self._pooling is None:
            return np.array([self._runner.score(self._text)])
        return self._runner.vector(self._text, self._pooling)[None]

    def end_slice(self) -> None:
        """Complete the slice that `compute` began."""
        self.slices.append(self._begun)
        self.is_ready = True
        self.ready()

    def close(self) -> None:
        self.closed = True


class FakeBackgroundPrompt:
    """Implements `BackgroundPrompt`: complete after `looks` polls, or when nothing else runs."""

    def __init__(
        self,
        runner: FakeRunner,
        tokens: Seq[int],
        done: Callable[[], None],
        looks: int,
        *,
        held: int,
        fails: bool,
    ) -> None:
        self.tokens = list(tokens)
        self.held = held
        self._runner = runner
        self._done = done
        self._looks = looks
        self._fails = fails
        self._is_wanted = True
        self._looked = 0
        self.taken = False
        """Its memory has been released."""

    @property
    def computed(self) -> int:
        left = len(self.tokens) - self.held
        return self.held + left * min(self._looked, self._looks + 1) // (self._looks + 1)

    @property
    def over(self) -> bool:
        self._looked += 1
        return self._looked > self._looks

    def result(self) -> FakeState | None:
        assert self._looked > self._looks, "it is not over"
        self.taken = True
        if self._fails or not self._is_wanted:
            return None
        self._runner.computed_tokens += len(self.tokens) - self.held
        return FakeState(tuple(self.tokens), 0)

    def hurry(self, *, alone: bool) -> None:
        if alone:
            self._looked = self._looks
            self._done()

    def cancel(self) -> None:
        self._is_wanted = False
        self.taken = True


def _seed(tokens: Seq[int], salt: str = "") -> int:
    digest = hashlib.sha256(np.array(tokens, dtype=np.int64).tobytes() + salt.encode()).digest()
    return int.from_bytes(digest[:8], "little")
