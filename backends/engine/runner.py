"""The interface between engine and runner: a small contract that the llama.cpp, native PyTorch and
fake runners implement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.kv.manager import KvLimits
from hearth.backends.engine.kv.store import BlockStore, SavedState, SequenceStore
from hearth.backends.engine.shortlist import Shortlist, ShortlistSpec


class RunnerLost(Exception):
    """The runner cannot continue. Its process must end; the host starts another."""


class Interrupted(Exception):
    """A computation ended early because of `Runner.interrupt`; its results are discarded.

    Args:
        lost_slots: slots whose earlier keys and values are lost as well.
    """

    def __init__(self, lost_slots: Seq[int] = ()) -> None:
        super().__init__("interrupted")
        self.lost_slots = frozenset(lost_slots)


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Properties and capabilities of a runner; fixed once it is loaded."""

    vocab_size: int
    context: int
    """Tokens that one sequence may hold; never more than `pool_tokens`."""
    pool_tokens: int
    """Tokens that all sequences and kept prefixes together may hold; shared tokens count once."""
    max_sequences: int
    """Sequences that run at the same time: slots 0 to `max_sequences` - 1."""
    max_batch_tokens: int
    """Maximum number of tokens in one step, over all rows."""
    max_outputs: int
    """Maximum number of logits rows in one step, over all rows; at least `max_sequences`."""
    kv_bytes_per_token: int
    """Bytes of each token in the pool, over all layers with full attention."""
    end_ids: frozenset[int]
    """Every end-of-generation token that the model declares."""
    keeps_past: bool
    """Any prefix of what a sequence holds can be shared. False for recurrent, hybrid and
    sliding-window memories: there, only the whole of what a sequence holds can be relied on.
    """
    embedding_width: int = 0
    """Length of the vectors of `embed`; 0: not supported."""
    can_rank: bool = False
    """Whether `rank` works: the model was trained to score how well a text answers a query."""
    max_text_tokens: int | None = None
    """Longest text of `embed` and `rank`; None: `context`."""
    slices_texts: bool = False
    """Whether `begin_text` works: attention is causal, so a text can be computed part by part."""
    concurrent_text_tokens: int | None = None
    """Slices of a text of more tokens are computed concurrently with steps; None: of none are."""
    generates: bool = True
    """Whether `step` works. False for encoders, which only `embed` or `rank`."""
    tile: int = 1
    """Steps are most efficient when their token count is a multiple of this."""
    mixed_tokens: int | None = None
    """Maximum number of tokens of a step that mixes prefill and decode; in larger ones prefill is
    disproportionately slow. None: no maximum."""
    state_bytes: int = 0
    """Bytes of the recurrent state of a sequence or kept prefix, independent of its length."""
    window_pool_bytes: int = 0
    """Bytes that sliding-window layers may take in addition, independent of what the pool holds."""
    can_roll_back: bool = True
    """Whether the memory can forget the last tokens of a step, which drafts require."""
    page: int = 1
    """Tokens per block of the KV cache."""
    no_streaming: str = ""
    """Why sequences cannot forget tokens from the middle; empty if they can."""
    has_shortlists: bool = False
    """Logits stay on a device, so rows request shortlists where these are sufficient."""


@dataclass(slots=True)  # Not frozen: one is made per token, and freezing costs a microsecond.
class Row:
    """Tokens of one sequence in one step; `tokens` go to positions `start`, `start + 1`, ..."""

    slot: int
    start: int
    tokens: Seq[int]
    outputs: int
    """Request the logits after each of the last `outputs` tokens."""
    drafts: int = 0
    """How many of the last `tokens` are drafts; those that the sequence does not draw are dropped.
    """
    parents: Seq[int] = ()
    """The tree of the drafts, see `Draft.parents`; empty for a chain. A token is at the position
    after its parent's, and attends to what its parent attends to and itself. Keys and values are in
    the cells from `start` on in the order of `tokens`, until `KvManager.keep` moves the accepted
    ones together.
    """
    shortlist: ShortlistSpec | None = None
    """Request a shortlist of the last logits instead, from a runner that `has_shortlists`."""
    handle: Any = None
    """Where the keys and values of `slot` are: see `Handle`. Set before the step."""

    @property
    def depth(self) -> int:
        """Length of the longest path through the drafts."""
        return max(self.depths, default=0) if self.parents else self.drafts

    @property
    def depths(self) -> list[int]:
        """For each draft of a tree, the number of drafts on the path to it, itself included."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths[1:]

    def path(self, tokens: Seq[int]) -> list[int]:
        """The places, counted from 1, of the drafts that match the first of `tokens`, as far as
        they match.
        """
        path: list[int] = []
        for token in tokens:
            place = self.next_place(path[-1] if path else 0, token)
            if not place:
                break
            path.append(place)
        return path

    def next_place(self, place: int, token: int) -> int:
        """The place of the draft `token` that follows the one at `place` (0: before the first
        draft); 0 if absent.
        """
        first = len(self.tokens) - self.drafts - 1
        if not self.parents:
            is_it = place < self.drafts and self.tokens[first + place + 1] == token
            return place + 1 if is_it else 0
        return next(
            (
                child
                for child, parent in enumerate(self.parents, 1)
                if parent == place and self.tokens[first + child] == token
            ),
            0,
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: at most `max_batch_tokens` tokens, and at most one row per slot."""

    rows: tuple[Row, ...]
    cells: int = 0
    """Tokens in the KV cache before the step; shared tokens count once."""

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(slots=True)
class StepResult:
    """The results of a step, by slot."""

    logits: Mapping[int, NDArray[np.float32]]
    """[outputs, vocab_size] for each row that requested some; read-only, and valid until the next
    step.
    """
    shortlists: Mapping[int, Shortlist] = field(default_factory=dict)
    """The shortlist of each row that requested one."""
    hidden: Any = None
    """[outputs of all rows, width], in row order, on the device: the hidden states from which the
    logits were computed. Only from a runner with Medusa heads; None if no row has outputs.
    """


class BackgroundPrompt(Protocol):
    """A prompt that is computed in the background, outside the KV cache."""

    @property
    def computed(self) -> int:
        """Tokens computed so far, including those that were copied."""
        ...

    @property
    def over(self) -> bool: ...

    def result(self) -> SavedState | None:
        """Once `over`, the state after all its tokens; None if it failed or was cancelled."""
        ...

    def hurry(self, *, alone: bool) -> None:
        """Set whether it may use the whole machine, because no sequence streams."""
        ...

    def cancel(self) -> None:
        """End it early; its slot may be reused immediately."""
        ...


class BackgroundPrefill(Protocol):
    """Computes prompts in a thread of its own, one at a time."""

    def room_for(self, tokens: int, held: int) -> bool:
        """Whether a prompt of `tokens` tokens, of which `held` are copied, can be started now."""
        ...

    def begin(
        self,
        tokens: Seq[int],
        begun: SavedState | None,
        held: int,
        done: Callable[[], None],
    ) -> BackgroundPrompt | None:
        """Start to compute `tokens`; None if that is not possible.

        Args:
            begun: the state after the first `held` of them; None if `held` is 0.
            done: called from any thread when the prompt is over, however it ends.
        """
        ...


class SlicedText(Protocol):
    """One text that is embedded or ranked slice by slice, in memory of its own."""

    @property
    def is_ready(self) -> bool:
        """Whether its memory is allocated and no slice is being computed concurrently; until then,
        only `close` may be called.
        """
        ...

    @property
    def is_concurrent(self) -> bool:
        """Whether `compute` only begins a slice, which is computed while steps go on."""
        ...

    @property
    def computed(self) -> int:
        """Number of tokens computed so far."""
        ...

    def compute(
        self, tokens: int, left_s: Callable[[], float] | None = None
    ) -> NDArray[np.float32] | None:
        """Compute about the next `tokens` tokens: an efficient number, or some of the layers for
        more tokens. Returns the result of `embed` or `rank` for this text after the last token, or
        as soon as the rest makes no difference; before that, None.

        Args:
            left_s: returns how many seconds the slice has left. A runner that can stop within a
                slice does so when what comes next would take longer.

        Raises:
            HearthError: the library failed, or there was no memory; only `close` may follow.
            Interrupted: see `Runner.interrupt`; only `close` may follow.
        """
        ...

    def close(self) -> None:
        """Free its memory. May be called twice."""
        ...


class Runner(Protocol):
    """Executes plans. Only the engine's thread calls it, except for `interrupt`."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def store(self) -> SequenceStore | BlockStore:
        """The memory of keys and values. Only the KV manager changes who holds which part of it."""
        ...

    @property
    def limits(self) -> KvLimits:
        """How much of the store may be used for what."""
        ...

    @property
    def background(self) -> BackgroundPrefill | None:
        """Background prefill, concurrent with steps; None if not possible or not useful."""
        ...

    @property
    def beside_bytes(self) -> int:
        """Bytes that keys and values take now outside the store, e.g. for background prefill."""
        ...

    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`, whose rows have their handles and room for their tokens. Changes nothing
        but the keys and values after the tokens that the rows' slots hold.

        Raises:
            Busy: there was no memory after all; nothing was computed, and `info.pool_tokens` may
                be unreachable.
            HearthError: the library failed; no row of the plan was computed, and slots that lost
                what they held before are listed in `lost_slots` of its `data`.
            RunnerLost: no further step is possible.
            Interrupted: see `interrupt`.
        """
        ...

    def interrupt(self, wanted: bool) -> None:
        """Set whether the current `step`, `embed`, `rank` or slice should end early and raise
        `Interrupted`; from any thread. A runner whose steps are short may ignore it.
        """
        ...

    def embed(self, texts: Seq[Seq[int]], pooling: Pooling) -> NDArray[np.float32]:
        """One vector for each list of token ids: [len(texts), embedding_width], each of length 1.
        Touches no slot.

        Raises:
            UnsupportedParameter: the model does not support this pooling.
            PromptTooLong: a text is longer than one step can take.
        """
        ...

    def rank(self, texts: Seq[Seq[int]]) -> NDArray[np.float32]:
        """Scores of how well each text answers its query: [len(texts)], higher is better. Each list
        of token ids has a query and a text in the format of the model. Touches no slot.

        Raises:
            UnsupportedParameter: the model was not trained for ranking.
            PromptTooLong: a text is longer than one step can take.
        """
        ...

    def begin_text(
        self, text: Seq[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> SlicedText:
        """Start to embed one text, or without `pooling` to rank it, slice by slice. Only one at a
        time, and one that is computed concurrently: the previous one must be closed. `embed` and
        `rank` may be called meanwhile. Requires `info.slices_texts`.

        Args:
            ready: called from any thread whenever it becomes ready later.

        Raises:
            HearthError: as `embed` and `rank`; and `DoesNotFit`.
        """
        ...

    def close(self) -> None:
        """Free everything; the runner cannot be used afterwards."""
        ...
