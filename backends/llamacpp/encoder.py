"""Runs encoders such as BERT, which embed or rank texts and have no KV cache to generate with."""

from __future__ import annotations

from collections.abc import Sequence

from hearth.backends.engine.kv.manager import KvLimits
from hearth.backends.engine.kv.store import GroupSpec, SavedState, StoredBytes
from hearth.backends.engine.runner import RunnerInfo, StepPlan, StepResult
from hearth.backends.errors import HearthError, InternalError
from hearth.backends.llamacpp.embedder import Embedder, TextRunner
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan
from hearth.backends.machine.threads import fastest_threads, usable_cores

_PROBE_TOKENS = 64
"""Tokens of the text that thread counts are measured with."""


class EncoderRunner(TextRunner):
    """Implements `hearth.backends.engine.runner.Runner` for texts only: `step` always fails.

    Owns `model` and frees it in `close`.

    Args:
        model: a loaded model of one of the `ENCODERS`.
        plan: from `plan_context`; its context is the longest text, unless the model's limit is
            lower.
        threads: None to measure the fastest number now.
        has_rank_head: whether the file has the tensors that `rank` needs (`facts.has_rank_head`).

    Raises:
        DoesNotFit: a context could not be made.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        *,
        threads: int | None,
        has_rank_head: bool,
    ) -> None:
        self._model = model
        self.store = _NoBlocks()
        self.limits = KvLimits(slots=0, pool_tokens=0, context=0, kept_tokens=0)
        self.background = None
        self.threads = threads or usable_cores()
        self._interrupt = Interrupt()
        self._embedder = texts = Embedder(
            model, plan, self.threads, self._interrupt, has_rank_head=has_rank_head
        )
        self.info = RunnerInfo(
            vocab_size=model.facts.vocab_size,
            context=texts.max_tokens,
            pool_tokens=texts.max_tokens,
            max_sequences=plan.slots,
            max_batch_tokens=plan.max_batch_tokens,
            max_outputs=plan.max_outputs,
            kv_bytes_per_token=0,
            end_ids=model.facts.end_ids,
            keeps_past=True,
            embedding_width=texts.embedding_width,
            can_rank=texts.can_rank,
            generates=False,
        )
        try:
            self._warm_up(measure=threads is None)
        except HearthError:
            self._embedder.close()
            raise

    @property
    def beside_bytes(self) -> int:
        return self._embedder.nbytes

    @property
    def batch_threads(self) -> int:
        """The same as `threads`: every step computes whole texts."""
        return self.threads

    def step(self, plan: StepPlan) -> StepResult:
        """Raises `InternalError`: see `RunnerInfo.generates`."""
        raise InternalError(f"{self._model.path.name} is an encoder and cannot generate.")

    def close(self) -> None:
        """Free contexts and model. May be called twice."""
        self._embedder.close()
        self._model.close()

    def _warm_up(self, *, measure: bool) -> None:
        """Touch every weight once, and choose the number of threads."""
        tokens = min(_PROBE_TOKENS, self.info.context)
        if measure:
            self.threads = fastest_threads(
                lambda count: self._embedder.warm_up(tokens, count), self.threads
            ).threads
        self._embedder.warm_up(tokens, self.threads)


class _NoBlocks:
    """Implements `hearth.backends.engine.kv.store.BlockStore` without any blocks."""

    page = 1
    groups = (GroupSpec(None),)
    token_bytes = 0
    state_bytes = 0
    most_offloaded_bytes = 0
    fingerprint = b""

    def pack(self, state: SavedState) -> tuple[bytes, memoryview]:
        raise InternalError("An encoder has no keys and values to pack.")

    def unpack(self, meta: bytes, data: StoredBytes) -> None:
        return None

    def available_bytes(self) -> int | None:
        return None

    def capacity(self, group: int) -> int:
        return 0

    def nbytes(self, group: int) -> int:
        return 0

    def grow(self, group: int, blocks: int) -> bool:
        return False

    def expect(self, group: int, blocks: int) -> None:
        """Do nothing: nothing is read from disk."""

    def shrink(self, group: int, blocks: int) -> None:
        """Do nothing: nothing is allocated."""

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        raise InternalError(f"Block {source} does not exist: an encoder has none.")

    def move(self, table: Sequence[int], start: int, end: int, by: int) -> None:
        raise InternalError(f"Block {table[0]} does not exist: an encoder has none.")

    def rearrange(self, group: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        raise InternalError("An encoder has no tokens to move.")

    def save_part(self, table: Sequence[int], start: int, end: int) -> None:
        return None

    def restore_part(self, table: Sequence[int], state: SavedState, start: int, end: int) -> bool:
        return False
