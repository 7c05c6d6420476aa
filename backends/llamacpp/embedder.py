"""Vectors and ranks of texts, in llama.cpp contexts that are separate from running sequences."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.checks import check_token_ids
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Interrupted, Row
from hearth.backends.errors import (
    DoesNotFit,
    HearthError,
    InternalError,
    InvalidParameter,
    UnsupportedParameter,
    prompt_too_long,
)
from hearth.backends.llamacpp.context import ABORTED, Batch, Context, scratch_bytes
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import (
    CELL_ALIGNMENT,
    FLASH_DEPTH,
    FLASH_TILE,
    START_CELLS,
    TILE,
    ContextPlan,
)
from hearth.backends.machine.memory import available_bytes
from hearth.quant.gguf.file import ENCODERS

log = logging.getLogger(__name__)

MAX_WHOLE_TOKENS = 8192
"""Longest text of a model with bidirectional attention: it must be computed in one piece, which
only an interrupt ends early, after an operation of the graph."""
MAX_TEXTS = 16
"""Most texts of one batch; for a model with recurrent layers, each takes a recurrent state."""
LOGIT_BYTES = 256 << 20
"""Most bytes of logits of a batch: a generating model also computes and copies the logits of every
token, wanted or not."""
QUICK_BYTES = 64 << 20
"""A context with at most this many bytes of keys and values is made almost instantly."""
WHOLE_LOGIT_BYTES = 1 << 30
"""Like `LOGIT_BYTES`, for texts that cannot be split."""
CONCURRENT_TOKENS = 128
"""Tokens of a slice that is computed while steps go on."""

_MEAN, _CLS, _LAST, RANK = 1, 2, 3, 4
"""llama_pooling_type of llama.h."""
_YES = "yes"
"""Label of the first output if a reranker has one for each answer to "does it fit?"."""
_POOLING: dict[Pooling, int] = {"mean": _MEAN, "cls": _CLS, "last": _LAST}

Vectors = NDArray[np.float32]


def own_pooling(model: LlamaModel) -> int:
    """The pooling type in the file; 0 if absent."""
    architecture = model.metadata("general.architecture")
    return int(model.metadata(f"{architecture}.pooling_type") or 0)


def names_rank(model: LlamaModel) -> bool:
    """Whether the model's first output is a rank according to the file.

    It is if there is only one output, or if its label is "yes". Models with other labels classify
    texts.
    """
    api = model.library.api
    if own_pooling(model) != RANK:
        return False
    label = api.llama_model_cls_label(model.handle, 0)
    is_yes = label is not None and label.decode("utf-8", "replace").lower() == _YES
    return is_yes or int(api.llama_model_n_cls_out(model.handle)) == 1


class Embedder:
    """Embeds or ranks texts with a loaded model.

    It has one context for whole texts and one for a text in slices. They are made when first
    needed, and made again for another pooling, or for a longer text or batch. A long text in slices
    has its own context and, on a processor with several cores, its own thread. Close the embedder
    before the model.

    Args:
        model: outlives the embedder.
        plan: the context's KV type, attention and longest text.
        threads: for all of its work.
        interrupt: ends computations early, with `Interrupted`.
        bytes_left: memory that its contexts may still take; the smallest context that can compute a
            text is made even beyond that.
        has_rank_head: whether the file has the tensors that `rank` needs (`facts.has_rank_head`).

    Attributes:
        threads: of the contexts that are made from now on.
        concurrent_threads: threads of a slice that is computed while steps go on, given whether
            nothing else is computed; None to compute every slice in the caller's thread.
        is_shared: whether anything else was computed since the last concurrent slice began.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        threads: int,
        interrupt: Interrupt | None = None,
        bytes_left: Callable[[], float] = lambda: math.inf,
        *,
        has_rank_head: bool = True,
    ) -> None:
        self._model = model
        self._plan = plan
        self.threads = threads
        self._interrupt = interrupt
        self._bytes_left = bytes_left
        self.concurrent_threads: Callable[[bool], int] | None = None
        self.is_shared = False
        self._context: _PoolingContext | None = None
        self._slicing: _PoolingContext | None = None
        """Context for a text that is computed in slices and is not long."""
        self._open: LlamaSlicedText | None = None
        """The last text that was computed in slices by the caller's thread."""
        self._concurrent: _ConcurrentText | None = None
        """The last text that was computed in slices while steps went on."""
        self._thread: threading.Thread | None = None
        """The last of the threads that make, use and free large contexts, one after the other."""
        self._own_pooling = own_pooling(model)
        architecture = model.metadata("general.architecture")
        self._is_encoder = architecture in ENCODERS
        is_causal = model.metadata(f"{architecture}.attention.causal") != "false"
        self.can_slice = is_causal and not self._is_encoder
        """Whether a text can be computed part by part, because no token sees later ones."""
        self.can_rank = has_rank_head and names_rank(model)
        self.width = _vector_width(model)
        """Length of a vector."""
        self.max_tokens = self._longest_text()
        """Most tokens of a text."""

    @property
    def embedding_width(self) -> int:
        """Length of a vector; 0 for a reranker, which has no vectors."""
        return 0 if self._own_pooling == RANK else self.width

    def embed(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """One vector for each text, in their order: [len(texts), width], each of length 1.

        For a causal model, a text may be as long as the context: it is computed in pieces, whose
        means are weighted by their lengths.

        Args:
            texts: token ids, including the special tokens that the model expects.
            pooling: "model" is the pooling in the file, or mean if absent.

        Raises:
            UnsupportedParameter: the model is a reranker, or its own pooling is not known here.
            InvalidParameter: a text has no tokens, or one that is not in the vocabulary.
            PromptTooLong: a text is too long; nothing was computed.
            DoesNotFit: there is no memory for a context of the longest text.
            InternalError: llama.cpp failed.
        """
        return _normalized(self._pooled(texts, self._pooling_type(pooling)))

    def rank(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """The rank of each text: [len(texts)], on the model's own scale, higher is better.

        Each of `texts` is a query and a text in the form that the model expects; its rank measures
        how well the text answers the query.

        Args:
            texts: token ids, including the special tokens that the model expects.

        Raises:
            UnsupportedParameter: the model was not trained to rank.
            InvalidParameter, PromptTooLong, DoesNotFit: as `embed`.
            InternalError: llama.cpp failed, or a rank is not a finite number.
        """
        self._check_ranks()
        return _ranks(self._pooled(texts, RANK))

    def begin(
        self, text: Sequence[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> LlamaSlicedText:
        """Begin to embed `text` slice by slice, or to rank it if `pooling` is None.

        Only for causal models; the previous text must be closed, but there may be one of at most
        `quick_tokens` and one that is computed concurrently. The context of a longer text is made
        in the background, because llama.cpp zeroes all of it, which may take seconds.

        Args:
            ready: see the protocol.

        Raises:
            UnsupportedParameter, InvalidParameter, PromptTooLong: as `embed` and `rank`.
            DoesNotFit: as `embed`; for a large context `compute` raises it.
            InternalError: the model is not causal.
        """
        if not self.can_slice:
            raise InternalError(f"{self._model.path.name} computes texts whole.")
        if pooling is None:
            self._check_ranks()
        kind = RANK if pooling is None else self._pooling_type(pooling)
        self._check(0, text)
        self._check_length(len(text))
        cells = self._cells(len(text))
        finish = _ranks if pooling is None else _normalized
        if len(text) <= self.quick_tokens:
            context = self._slicing
            batch = self._sized(len(text), cells, context)
            if context is None or not context.suits(kind, batch, cells):
                self._close_slicing()
                context = self._slicing = self._made(kind, batch, cells, 1)
            self._open = self._sliced(kind, text, finish, _no_context)
            self._open.open(context)
            return self._open

        def make() -> None:
            try:
                sliced.open(self._made(kind, batch, cells, 1, interrupt))
            except HearthError as error:
                sliced.fail(error)
            except Exception as error:
                log.exception("no context for a text of %d tokens", len(text))
                sliced.fail(error)
            ready()

        sliced: LlamaSlicedText
        interrupt = self._interrupt
        batch = self._sized(len(text), cells, None)
        if self.concurrent_threads is None:
            sliced = self._open = self._sliced(kind, text, finish, self._background)
        else:
            interrupt = Interrupt()
            batch = min(batch, CONCURRENT_TOKENS)
            sliced = self._concurrent = _ConcurrentText(
                *(kind, text, self.slice_size, finish, self._background),
                *(self._concurrent_slice_threads, interrupt, ready),
            )
        self._background(make)
        return sliced

    @property
    def nbytes(self) -> int:
        """Memory that its contexts take."""
        own = {one.context for one in (self._open, self._concurrent) if one is not None}
        contexts = {self._context, self._slicing} | own
        return sum(self._bytes_of(one.batch_tokens, one.cells) for one in contexts if one)

    def release(self) -> None:
        """Free the contexts in which no text is being computed, because memory is needed."""
        self._close_context()
        if self._open is None or self._open.is_closed:
            self._close_slicing()

    def warm_up(self, tokens: int, threads: int) -> None:
        """Compute a text of `tokens` tokens with `threads` threads, also used from then on."""
        self.threads = threads
        if self._context is not None:
            self._context.set_threads(threads, threads)
        self._pooled([[self._model.facts.bos_id or 0] * tokens], self._own_pooling or _MEAN)

    def close(self) -> None:
        """Free the contexts; the next text makes a new one. May be called twice."""
        for text in (self._open, self._concurrent):
            if text is not None:
                text.close()
        if self._thread is not None:
            self._thread.join()
        self._close_context()
        self._close_slicing()

    def _check_ranks(self) -> None:
        if not self.can_rank:
            raise UnsupportedParameter(
                "model",
                f"{self._model.path.name} was not trained to rank texts.",
                "Use a reranker, e.g. bge-reranker or Qwen3-Reranker.",
            )

    def _longest_text(self) -> int:
        """Most tokens of a text.

        Positions beyond the trained ones may have no row in the model's table, in which case an
        assertion of llama.cpp fails.
        """
        plan, facts = self._plan, self._model.facts
        most = plan.context if plan.text_tokens is None else min(plan.context, plan.text_tokens)
        if self.can_slice:
            return most
        limit = min(most, MAX_WHOLE_TOKENS)
        if facts.trained_context > 0:
            limit = min(limit, facts.trained_context)
        if not self._is_encoder:
            limit = min(limit, WHOLE_LOGIT_BYTES // (4 * facts.vocab_size))
        return max(limit, 1)

    def _pooled(self, texts: Sequence[Sequence[int]], kind: int) -> Vectors:
        """[len(texts), width]: the result of llama.cpp's pooling `kind` for each text."""
        for index, text in enumerate(texts):
            self._check(index, text)
        if not texts:
            return np.zeros((0, self.width), np.float32)
        context = self._fitting(kind, [len(text) for text in texts])
        self.is_shared = True
        context.set_threads(self._own_threads(), self._own_threads())
        vectors = np.zeros((len(texts), context.width), np.float32)
        for group in _groups(texts, context.batch_tokens, context.sequences):
            if len(texts[group.start]) > context.batch_tokens:
                text = texts[group.start]
                sliced = self._sliced(kind, text, np.asarray, _no_context)
                sliced.open(context)
                vectors[group] = sliced.rest()
            else:
                context.clear()
                rows = [
                    Row(slot, 0, text, outputs=len(text)) for slot, text in enumerate(texts[group])
                ]
                vectors[group] = context.compute(rows)
        if context.cells > START_CELLS:
            self._close_context()  # It was made for one long text.
        return vectors

    def _pooling_type(self, pooling: Pooling) -> int:
        name = self._model.path.name
        if self._own_pooling == RANK:
            raise UnsupportedParameter(
                "pooling",
                f"{name} is a reranker: it scores pairs of texts and has no vectors for one.",
                "Use an embedding model.",
            )
        if pooling != "model":
            return _POOLING[pooling]
        if self._own_pooling not in (0, *_POOLING.values()):
            raise UnsupportedParameter(
                "pooling",
                f"{name} names pooling type {self._own_pooling}, which is not known.",
                "Choose a pooling: mean, last or cls.",
            )
        return self._own_pooling or _MEAN

    def _check(self, index: int, text: Sequence[int]) -> None:
        if len(text) == 0:
            raise InvalidParameter("input", f"Text {index} has no tokens.", "Leave it out.")
        check_token_ids("token_ids", text, self._model.facts.vocab_size)

    def _check_length(self, longest: int) -> None:
        limit = self.max_tokens
        if longest > limit:
            hint = "Split the text: this model reads both ways, so a text is computed in one piece."
            if self.can_slice:
                hint = "Split the text, or set a larger kv_budget (--kv-budget)."
            hint = hint if limit < self._plan.context else ""
            raise prompt_too_long("texts", longest, limit, hint=hint)

    def _fitting(self, kind: int, lengths: Sequence[int]) -> _PoolingContext:
        """A context for texts of these lengths; the existing one if it is large enough."""
        longest = max(lengths)
        self._check_length(longest)
        context = self._context
        cells = 0
        if self.can_slice:
            batch = self._sized(sum(lengths), self._cells(longest), context)
            cells = self._cells(longest) if longest > batch else 0
        else:
            batch = max(min(_power_of_two(longest), self.max_tokens), self._batch_tokens())
        if context is None or not context.suits(kind, batch, cells):
            self._close_context()
            context = self._context = self._made(kind, batch, cells, MAX_TEXTS)
        return context

    def slice_size(self, tokens: int, start: int) -> int:
        """Tokens of a slice of about `tokens` tokens after `start` others.

        On a processor these are whole tiles.
        """
        if not self._model.on_gpu:
            is_deep = start >= FLASH_DEPTH
            if self._plan.flash_attention != 0 and (is_deep or tokens >= FLASH_TILE * 3 // 4):
                tokens = max((tokens + FLASH_TILE // 4) // FLASH_TILE, 1) * FLASH_TILE
            else:
                tokens = max((tokens + TILE // 2) // TILE, 1) * TILE
        return min(tokens, self._batch_tokens())

    @property
    def slice_threads(self) -> int:
        """Threads that a slice takes away from steps; 0 if none is being computed concurrently."""
        text = self._concurrent
        return 0 if text is None else text.slice_threads

    @property
    def quick_tokens(self) -> int:
        """Most tokens of a text whose context has at most `QUICK_BYTES`, or one."""
        bytes_per_token = self._plan.kv_bytes_per_token
        if not bytes_per_token:
            return self.max_tokens
        return 1 << max((QUICK_BYTES // bytes_per_token).bit_length() - 1, 0)

    def _own_threads(self) -> int:
        """Threads for texts that are computed by the caller's thread."""
        return max(1, self.threads - self.slice_threads)

    def _concurrent_slice_threads(self) -> int:
        assert self.concurrent_threads is not None
        is_alone, self.is_shared = not self.is_shared, False
        return self.concurrent_threads(is_alone)

    def _sliced(
        self,
        kind: int,
        text: Sequence[int],
        finish: Callable[[Vectors], Vectors],
        leave: Callable[[Callable[[], None]], None],
    ) -> LlamaSlicedText:
        return LlamaSlicedText(kind, text, self.slice_size, finish, leave, self._own_threads)

    @property
    def is_making_context(self) -> bool:
        """Whether a large context is being made or freed in the background."""
        is_active = self._thread is not None and self._thread.is_alive()
        return is_active and not self.slice_threads

    def _background(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread, after the work submitted before; here if no thread can start."""
        before = self._thread

        def run() -> None:
            if before is not None:
                before.join()
            work()

        thread = threading.Thread(target=run, name="text context", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("no thread for a long text: %s", error)
            run()
        else:
            self._thread = thread

    def _batch_tokens(self) -> int:
        """Most tokens of a batch, unless a text is longer and cannot be split."""
        batch = self._plan.ubatch
        if not self._is_encoder:
            batch = min(batch, LOGIT_BYTES // (8 * self._model.facts.vocab_size))
        return max(1, batch)

    def _sized(self, tokens: int, cells: int, present: _PoolingContext | None) -> int:
        """Tokens of a batch for texts that can be split and have `tokens` tokens in total.

        As many as there is memory for once the context `present` is freed, and at least a tile.
        """
        batch = min(max(_power_of_two(tokens), TILE), self._batch_tokens())
        left = self._bytes_left()
        if present is not None:
            left += self._bytes_of(present.batch_tokens, present.cells)
        while batch > TILE and self._bytes_of(batch, cells) > left:
            batch = max(TILE, batch // 2)
        return batch

    def _bytes_of(self, batch: int, cells: int) -> int:
        """Memory that a context takes."""
        cells = max(cells, batch)
        outputs = 0 if self._is_encoder else batch
        scratch = scratch_bytes(self._model, self._plan, tokens=batch, cells=cells, outputs=outputs)
        return scratch + cells * self._plan.kv_bytes_per_token

    def _cells(self, tokens: int) -> int:
        """Cells of a context for a text of `tokens` tokens, with room for other texts too."""
        most = -(-self.max_tokens // CELL_ALIGNMENT) * CELL_ALIGNMENT
        return min(_power_of_two(tokens), most)

    def _close_context(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def _close_slicing(self) -> None:
        context, self._slicing = self._slicing, None
        if context is not None:
            context.close()
            if self._open is not None and self._open.context is context:
                self._open = None

    def _made(
        self,
        kind: int,
        batch_tokens: int,
        cells: int,
        texts: int,
        interrupt: Interrupt | None = None,
    ) -> _PoolingContext:
        cells = max(cells, batch_tokens)
        needed = cells * self._plan.kv_bytes_per_token
        available = available_bytes()
        if needed > available:
            raise DoesNotFit(
                f"Embedding a text of this length needs {needed / 1e9:.2f} GB for keys and values; "
                f"{available / 1e9:.2f} GB are available.",
                "Split the text, or close other programs.",
                needed_bytes=needed,
                available_bytes=available,
            )
        return _PoolingContext(
            self._model,
            self._plan,
            kind,
            batch_tokens,
            cells,
            min(texts, batch_tokens, self._model.library.max_sequences),
            self.threads,
            interrupt or self._interrupt,
        )


class TextRunner:
    """The part of a runner for texts, which an embedder computes in contexts of its own."""

    _embedder: Embedder
    _interrupt: Interrupt

    def embed(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """See `Embedder.embed`."""
        return self._embedder.embed(texts, pooling)

    def rank(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """See `Embedder.rank`."""
        return self._embedder.rank(texts)

    def begin_text(
        self, text: Sequence[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> LlamaSlicedText:
        """See `Embedder.begin`."""
        return self._embedder.begin(text, pooling, ready)

    def interrupt(self, wanted: bool) -> None:
        """See the protocol. On a processor it takes effect within one operation of the graph."""
        self._interrupt.set(wanted)


@dataclass(eq=False)
class LlamaSlicedText:
    """Implements `hearth.backends.engine.runner.SlicedText` for one text of a causal model.

    The text is the only one in its context.

    Args:
        size: see `Embedder.slice_size`.
        finish: converts the pooled vector [1, width] to the result.
        leave: called at close with a function that frees the context; does nothing if other texts
            use the context too.
        threads: returns the number of threads for the next slice.
    """

    kind: int
    text: Sequence[int]
    size: Callable[[int, int], int]
    finish: Callable[[Vectors], Vectors]
    leave: Callable[[Callable[[], None]], None]
    threads: Callable[[], int]
    is_concurrent: ClassVar[bool] = False
    is_ready: bool = field(default=False, init=False)
    is_closed: bool = field(default=False, init=False)
    context: _PoolingContext | None = field(default=None, init=False)
    """None before it is made and after it is freed."""
    computed: int = field(default=0, init=False)
    """Number of tokens computed so far."""
    _error: Exception | None = field(default=None, init=False)
    _pooled: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), init=False)

    def open(self, context: _PoolingContext) -> None:
        """Set the text's context, once it is made. May be called from any thread."""
        context.clear()
        self._pooled = np.zeros(context.width, np.float64)
        self.context = context
        self.is_ready = True

    def fail(self, error: Exception) -> None:
        """Report that the context cannot be made, or the text not computed. May be called from any
        thread.
        """
        self._error = error
        self.is_ready = True

    def compute(self, tokens: int, left_s: Callable[[], float] | None = None) -> Vectors | None:
        """See the protocol; a slice is one call of the library, which does not stop."""
        context, threads = self._opened(), self.threads()
        context.set_threads(threads, threads)
        self._advance(context, tokens)
        return self._result()

    def rest(self) -> Vectors:
        """The result for the text, computed in the largest possible slices."""
        assert self.context is not None
        while (vectors := self.compute(self.context.batch_tokens)) is None:
            pass
        return vectors

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.leave(self._free)

    def _opened(self) -> _PoolingContext:
        if self._error is not None:
            raise self._error
        if self.context is None or self.is_closed:
            raise InternalError("The text is closed, or not ready.")
        return self.context

    def _advance(self, context: _PoolingContext, tokens: int) -> None:
        start = self.computed
        end = start + min(self.size(tokens, start), context.batch_tokens)
        piece = self.text[start:end]
        vector = context.compute([Row(0, start, piece, outputs=len(piece))])[0]
        if self.kind == _MEAN:
            self._pooled += vector.astype(np.float64) * (len(piece) / len(self.text))
        else:
            self._pooled[:] = vector
        self.computed += len(piece)

    def _result(self) -> Vectors | None:
        is_over = self.computed == len(self.text) or (self.kind == _CLS and self.computed > 0)
        return self.finish(self._pooled.astype(np.float32)[None]) if is_over else None

    def _free(self) -> None:
        context, self.context = self.context, None
        if context is not None:
            context.close()


@dataclass(eq=False)
class _ConcurrentText(LlamaSlicedText):
    """A text whose slices are computed in the background, while steps go on. `compute` begins a
    slice, and the text is not ready until that is complete.

    Args:
        leave: does work in a thread, after the work submitted before, slices too.
        interrupt: of this text's context alone.
        ready: called from the background when the text is ready again.
    """

    interrupt: Interrupt
    ready: Callable[[], None]
    is_concurrent: ClassVar[bool] = True
    slice_threads: int = field(default=0, init=False)
    """Threads of the slice that is being computed; 0 if there is none."""

    def compute(self, tokens: int, left_s: Callable[[], float] | None = None) -> Vectors | None:
        """See the class; slices have `CONCURRENT_TOKENS` tokens, as their time costs no step."""
        context = self._opened()
        result = self._result()
        if result is None:
            self.slice_threads = self.threads()
            context.set_threads(self.slice_threads, self.slice_threads)
            self.is_ready = False
            self.leave(self._compute)
        return result

    def close(self) -> None:
        self.interrupt.set(True)
        super().close()

    def _compute(self) -> None:
        try:
            self._advance(self._opened(), CONCURRENT_TOKENS)
        except Interrupted:
            pass  # It is closed.
        except HearthError as error:
            self.fail(error)
        except Exception as error:
            log.exception("a text of %d tokens cannot be computed", len(self.text))
            self.fail(error)
        finally:
            self.slice_threads = 0
            self.is_ready = True
            self.ready()


def _no_context(free: Callable[[], None]) -> None:
    """Keep the context, because it serves other texts too."""


class _PoolingContext(Context):
    """A context that returns one vector per sequence, or its ranks with `RANK`.

    A batch is one graph (n_batch = n_ubatch), because llama.cpp pools only within a graph.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        kind: int,
        batch_tokens: int,
        cells: int,
        sequences: int,
        threads: int,
        interrupt: Interrupt | None,
    ) -> None:
        self.kind = kind
        self.sequences = sequences
        """At most one for each token of a batch, else output_reserve asserts."""
        self.batch_tokens = -(-batch_tokens // self.sequences) * self.sequences
        """The requested number, rounded up to a multiple of the sequences: graph_reserve rounds a
        graph's tokens up to such a multiple, but not its outputs, and mean pooling asserts that
        both are equal."""
        self.width = _vector_width(model)
        if kind == RANK:
            self.width = int(model.library.api.llama_model_n_cls_out(model.handle))
        super().__init__(
            model,
            plan,
            max(cells, self.batch_tokens),
            interrupt,
            "Split the text, or close other programs.",
            n_batch=self.batch_tokens,
            n_ubatch=self.batch_tokens,
            n_seq_max=self.sequences,
            n_threads=threads,
            n_threads_batch=threads,
            pooling_type=kind,
            embeddings=True,
        )
        self.has_memory = bool(self._memory)
        """False for models without a decoder, which compute every text as a whole."""
        self._batch = Batch(self._api, self.batch_tokens)

    def suits(self, kind: int, batch_tokens: int, cells: int) -> bool:
        """Whether it can replace a context made with these arguments."""
        return self.kind == kind and self.batch_tokens >= batch_tokens and self.cells >= cells

    def compute(self, rows: Sequence[Row]) -> Vectors:
        """[len(rows), width]: the pooled vector of each row, not normalized."""
        for row in rows:
            row.handle = row.slot
        self._batch.fill(rows)
        run = self._api.llama_decode if self.has_memory else self._api.llama_encode
        self._log.clear()
        code = run(self._handle, self._batch.struct)
        if code == ABORTED:
            raise Interrupted
        if code:
            raise InternalError(
                f"llama.cpp could not embed {sum(len(row.tokens) for row in rows):,} tokens "
                f"({code}): {self._log.said() or 'it gave no reason'}"
            )
        vectors = np.empty((len(rows), self.width), np.float32)
        for row, vector in zip(rows, vectors, strict=True):
            pointer = self._api.llama_get_embeddings_seq(self._handle, row.slot)
            if not pointer:
                raise InternalError(f"llama.cpp has no vector for sequence {row.slot}.")
            vector[:] = np.ctypeslib.as_array(pointer, (self.width,))
        return vectors


def _groups(texts: Sequence[Sequence[int]], tokens: int, most: int) -> Iterator[slice]:
    """Slices of consecutive texts that fit into one batch; a longer text is alone."""
    start, used = 0, 0
    for index, text in enumerate(texts):
        if index > start and (used + len(text) > tokens or index - start == most):
            yield slice(start, index)
            start, used = index, 0
        used += len(text)
    yield slice(start, len(texts))


def _normalized(vectors: Vectors) -> Vectors:
    """Divide each vector by its L2 norm.

    Raises:
        InternalError: a vector is zero or not finite.
    """
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InternalError("The model gave a vector that is zero or not finite.")
    unit: Vectors = (vectors / norms).astype(np.float32)
    return unit


def _ranks(vectors: Vectors) -> Vectors:
    """The first element of each vector.

    Raises:
        InternalError: a rank is not finite.
    """
    ranks = vectors[:, 0]
    if not np.isfinite(ranks).all():
        raise InternalError("The model gave a rank that is not a finite number.")
    return ranks


def _vector_width(model: LlamaModel) -> int:
    return int(model.library.api.llama_model_n_embd_out(model.handle))


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
