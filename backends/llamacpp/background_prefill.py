"""Background prefill: computes a prompt in its own context and thread while steps go on.

In a shared batch every row pays for attention over the whole pool, and the rows of a long prompt
pay for all tokens before them. On a processor this makes each step of the streaming requests
several times longer. With two contexts, each on a share of the cores, a stream loses little more
than that share.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from hearth.backends.engine.kv.store import SavedState
from hearth.backends.engine.runner import Row
from hearth.backends.errors import HearthError
from hearth.backends.llamacpp.context import ABORTED, Batch, LlamaContext, scratch_bytes
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan
from hearth.backends.llamacpp.store import LlamaState, LlamaStore
from hearth.backends.machine.memory import available_bytes

log = logging.getLogger(__name__)

CHUNK = 128
"""Tokens per call of `llama_decode`; the number of threads is updated after each call."""


class LlamaBackground:
    """Implements `hearth.backends.engine.runner.BackgroundPrefill`.

    Uses half of the threads, and memory for twice the prompt's tokens while its state is copied.

    Args:
        store: takes the states.
        plan: returns the current plan, with which the context is made.
        threads: of decode steps.
        batch_threads: of steps with prefill.
        taken: returns how many threads other background work has now.
    """

    def __init__(
        self,
        model: LlamaModel,
        store: LlamaStore,
        plan: Callable[[], ContextPlan],
        threads: int,
        batch_threads: int,
        taken: Callable[[], int],
    ) -> None:
        self.model = model
        self.store = store
        self.plan = plan
        self.batch_threads = batch_threads
        self._prefill: LlamaBackgroundPrompt | None = None
        self.threads = threads // 2
        """Threads that it takes away from steps; less those of other background work, it has at
        least one.
        """
        self._taken = taken

    def threads_now(self, *, alone: bool) -> int:
        """Threads for the next tokens, given whether no request streams."""
        return max(1, (self.batch_threads if alone else self.threads) - self._taken())

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is being computed."""
        if self._prefill is not None and self._prefill.over:
            self._prefill = None
        return self._prefill is not None

    @property
    def nbytes(self) -> int:
        """Most memory that it takes, with copies of its state, until that is used or discarded."""
        prefill = self._prefill
        return 0 if prefill is None else self._bytes_of(len(prefill.tokens), prefill.held)

    def _bytes_of(self, tokens: int, held: int) -> int:
        plan = self.plan()
        cells = max(tokens, plan.least_cells)
        scratch = scratch_bytes(self.model, plan, tokens=CHUNK, cells=cells, outputs=1)
        return (cells + tokens + held) * plan.kv_bytes_per_token + scratch

    def room_for(self, tokens: int, held: int) -> bool:
        if self.is_busy or self.threads < 1:
            return False
        return self._bytes_of(tokens, held) <= min(available_bytes(), self.store.budget_left_bytes)

    def begin(
        self, tokens: Sequence[int], begun: SavedState | None, held: int, done: Callable[[], None]
    ) -> LlamaBackgroundPrompt | None:
        """See the protocol; None if a token is not in the vocabulary, which a step reports."""
        assert begun is None or isinstance(begun, LlamaState)
        if not 0 <= min(tokens) <= max(tokens) < self.model.facts.vocab_size:
            return None
        self._prefill = LlamaBackgroundPrompt(self, tokens, begun, held, done)
        return self._prefill

    def close(self) -> None:
        """Cancel the prompt being computed and wait for its thread; a finished state is dropped."""
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.cancel()
            prefill.wait()


class LlamaBackgroundPrompt:
    """Implements `hearth.backends.engine.runner.BackgroundPrompt`. Starts at once.

    Args:
        owner: has the plan that `begun` was made with, and the threads.
        tokens: ids, all in the vocabulary.
        begun: the state after the first `held` tokens, or None.
        held: tokens of `begun`; at least one token is left to compute.
        done: called from this prefill's thread when it is over, however it ends.
    """

    def __init__(
        self,
        owner: LlamaBackground,
        tokens: Sequence[int],
        begun: LlamaState | None,
        held: int,
        done: Callable[[], None],
    ) -> None:
        self.tokens = tokens
        self.held = held
        self.over = False
        self._owner = owner
        plan = owner.plan()
        self._plan = replace(
            plan, slots=1, sequences=1, max_outputs=1, batch=CHUNK, ubatch=min(plan.ubatch, CHUNK)
        )
        self._begun = begun
        self._done = done
        self.computed = held
        self._is_alone = False
        self._is_wanted = True
        self._interrupt = Interrupt()
        self._state: LlamaState | None = None
        self._thread = threading.Thread(target=self._run, name="background prefill", daemon=True)
        self._thread.start()

    def result(self) -> LlamaState | None:
        return self._state

    def hurry(self, *, alone: bool) -> None:
        self._is_alone = alone

    def cancel(self) -> None:
        """See the protocol. On a processor it takes effect within one operation of the graph."""
        self._is_wanted = False
        self._interrupt.set(True)

    def wait(self) -> None:
        """Wait until it is over."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._state = self._compute()
        except (HearthError, MemoryError) as error:
            log.warning("a prompt cannot be computed in the background: %s", error)
        except Exception:
            log.exception("a side prefill failed")
        finally:
            self.over = True
            self._done()

    def _compute(self) -> LlamaState | None:
        count = len(self.tokens)
        owner = self._owner
        threads = owner.threads
        cells = max(count, self._plan.least_cells)
        context = LlamaContext(owner.model, self._plan, cells, threads, threads, self._interrupt)
        try:
            begun, self._begun = self._begun, None
            if begun is not None and not context.restore_sequence(0, begun.data):
                log.warning("a prompt's beginning cannot be copied to the background")
                return None
            del begun  # Releases the memory of the copy.
            batch = Batch(owner.model.library.api, CHUNK)
            for start in range(self.computed, count, CHUNK):
                if not self._is_wanted:
                    return None
                threads = owner.threads_now(alone=self._is_alone)
                context.set_threads(threads, threads)
                batch.fill([Row(0, start, self.tokens[start : start + CHUNK], 0, handle=0)])
                code = context.decode(batch)
                if code == ABORTED:
                    return None
                if code:
                    log.warning("llama_decode gave %d in a side prefill", code)
                    return None
                self.computed = min(start + CHUNK, count)
            if not self._is_wanted:
                return None
            data = context.export_sequence(0)
            return LlamaState(data, self._plan.flash_attention == 0, owner.store.fingerprint)
        finally:
            context.close()
