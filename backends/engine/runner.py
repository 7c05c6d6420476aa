"""What the engine asks of a runner: a small contract that llama.cpp, native PyTorch and a fake one
implement.
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
    """The runner cannot go on. Its process must end; the host starts another."""


class Interrupted(Exception):
    """A computation ended early because of `Runner.interrupt`; nothing of it counts.

    Args:
        lost_slots: those whose keys and values are lost, too.
    """

    def __init__(self, lost_slots: Seq[int] = ()) -> None:
        super().__init__("interrupted")
        self.lost_slots = frozenset(lost_slots)


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner is and can do; fixed once it is loaded."""

    vocab_size: int
    context: int
    """Tokens one sequence may hold; never more than `pool_tokens`."""
    pool_tokens: int
    """Tokens that all sequences and kept prefixes together may hold, shared ones once."""
    max_sequences: int
    """Sequences that run at the same time: slots 0 to `max_sequences` - 1."""
    max_batch_tokens: int
    """Most tokens in one step, all rows together."""
    max_outputs: int
    """Most rows of logits in one step, all rows together; at least `max_sequences`."""
    kv_bytes_per_token: int
    """Of each token in the pool, in all layers that see everything."""
    end_ids: frozenset[int]
    """Every end-of-generation token that the model declares."""
    keeps_past: bool
    """Any first part of what a sequence holds can be shared. False for recurrent, hybrid and
    sliding-window memories: there only what a sequence holds as a whole can be relied on.
    """
    embedding_width: int = 0
    """Length of the vectors of `embed`; 0: it cannot."""
    can_rank: bool = False
    """Whether `rank` works: the model was trained to say how well a text answers a query."""
    max_text_tokens: int | None = None
    """Longest text of `embed` and `rank`; None: `context`."""
    slices_texts: bool = False
    """Whether `begin_text` works: a token sees only those before it, so that a text can be computed
    part by part.
    """
    generates: bool = True
    """Whether `step` works. False for encoders, which only `embed` or `rank`."""
    tile: int = 1
    """Steps of a multiple of so many tokens are the cheapest for what they do."""
    mixed_tokens: int | None = None
    """Prefill beside decoding costs more than it should in steps of more tokens; None: in none."""
    state_bytes: int = 0
    """Of a recurrent state, which a sequence or a kept prefix has, however many its tokens."""
    window_pool_bytes: int = 0
    """What layers that see a window only may take beside that, whatever the pool holds."""
    can_roll_back: bool = True
    """Whether the memory can forget the last tokens of a step, as drafts need it."""
    page: int = 1
    """Tokens of a block of the KV cache."""
    no_streaming: str = ""
    """Why no sequence can forget tokens out of its middle; empty: it can."""
    has_shortlists: bool = False
    """Logits are on a device, so rows ask for shortlists where these are enough."""


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class Row:
    """Some tokens of one sequence in one step: `tokens` go to positions `start`, `start + 1`,
    ...
    """

    slot: int
    start: int
    tokens: Seq[int]
    outputs: int
    """Ask for the logits after each of the last `outputs` tokens."""
    drafts: int = 0
    """The last of `tokens` that are guesses; only what the sequence draws as well is kept of them.
    """
    parents: Seq[int] = ()
    """Where they are a tree: see `Draft.parents`. A token is at the position after its parent's,
    and sees what that sees and itself; keys and values are in the cells from `start` on, in their
    order, until `KvManager.keep` has those that are accepted moved together.
    """
    shortlist: ShortlistSpec | None = None
    """Ask a runner that `has_shortlists` for a shortlist of the last of them instead."""
    handle: Any = None
    """Where the keys and values of `slot` are: see `Handle`. Set before the step."""

    @property
    def depth(self) -> int:
        """Tokens of the longest way through its drafts."""
        return max(self.depths, default=0) if self.parents else self.drafts

    @property
    def depths(self) -> list[int]:
        """For each draft of a tree how many of them are on the way to it, itself included."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths[1:]

    def path(self, tokens: Seq[int]) -> list[int]:
        """The places of the drafts that are the first of `tokens`, counted from 1, as far as there
        are such.
        """
        path: list[int] = []
        for token in tokens:
            place = self.next_place(path[-1] if path else 0, token)
            if not place:
                break
            path.append(place)
        return path

    def next_place(self, place: int, token: int) -> int:
        """The place of the draft `token` after the one at `place`, 0 being what comes before all;
        0: there is none.
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
    """What one step computes: at most `max_batch_tokens` tokens, at most one row a slot."""

    rows: tuple[Row, ...]
    cells: int = 0
    """Tokens in the KV cache before the step; a shared one counts once."""

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step found, by slot."""

    logits: Mapping[int, NDArray[np.float32]]
    """[outputs, vocab_size] for each row that wanted some; read-only, and valid until the next
    step.
    """
    shortlists: Mapping[int, Shortlist] = field(default_factory=dict)
    """For each row that asked for one."""
    hidden: Any = None
    """[outputs of all rows, width], in their order, on the device: what the logits were made of.
    Only of a runner with Medusa heads; None also where no row has outputs.
    """


class BackgroundPrompt(Protocol):
    """A prompt that is computed in the background, outside the KV cache."""

    @property
    def computed(self) -> int:
        """Tokens that it has so far, with those that were copied."""
        ...

    @property
    def over(self) -> bool: ...

    def result(self) -> SavedState | None:
        """When it is over: the state after all its tokens; None if it failed or was cancelled."""
        ...

    def hurry(self, *, alone: bool) -> None:
        """Whether it may take the whole machine, because nobody streams."""
        ...

    def cancel(self) -> None:
        """Let it end early; its slot may be used for something else at once."""
        ...


class BackgroundPrefill(Protocol):
    """Computes prompts in a thread of its own, one at a time."""

    def room_for(self, tokens: int, held: int) -> bool:
        """Whether a prompt of `tokens` tokens can be begun now, of which `held` are copied."""
        ...

    def begin(
        self,
        tokens: Seq[int],
        begun: SavedState | None,
        held: int,
        done: Callable[[], None],
    ) -> BackgroundPrompt | None:
        """Begin to compute `tokens`; None where that cannot be.

        Args:
            begun: the state after the first `held` of them; None: there are none.
            done: called from any thread when it is over, however it ends.
        """
        ...


class SlicedText(Protocol):
    """One text that is embedded or ranked slice by slice, in memory of its own."""

    @property
    def is_ready(self) -> bool:
        """Whether its memory is there; before that nothing but `close` may be called."""
        ...

    def slice_tokens(self, tokens: int) -> int:
        """What the next slice should have where there is time for about `tokens` tokens: as many as
        are cheap together, and no more than are left. A slice may be some layers of more tokens.
        """
        ...

    def compute(self, tokens: int) -> NDArray[np.float32] | None:
        """Compute the next `tokens` tokens: as many as `slice_tokens` says, or fewer. After the
        last one, or as soon as the rest makes no difference: what `embed` or `rank` gives for this
        text.

        Raises:
            HearthError: the library failed, or there was no memory; only `close` may follow.
            Interrupted: see `Runner.interrupt`; only `close` may follow.
        """
        ...

    def close(self) -> None:
        """Free its memory. May be called twice."""
        ...


class Runner(Protocol):
    """Executes plans. Only the engine's thread calls it, apart from `interrupt`."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def store(self) -> SequenceStore | BlockStore:
        """Where keys and values are. Only the KV manager changes who has what of it."""
        ...

    @property
    def limits(self) -> KvLimits:
        """What of the store may be used for what."""
        ...

    @property
    def background(self) -> BackgroundPrefill | None:
        """Computes prompts next to the steps; None: that cannot be, or would not help."""
        ...

    @property
    def beside_bytes(self) -> int:
        """What keys and values take now outside the store, e.g. of prompts in the background."""
        ...

    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`, whose rows have their handles and room for their tokens. It changes
        nothing but keys and values after the tokens that the rows' slots hold.

        Raises:
            Busy: there was no memory after all; nothing was computed, and `info.pool_tokens` may
                not be reached.
            HearthError: the library failed; no row of the plan was computed, and slots that lost
                what they held before are named in `lost_slots` of its `data`.
            RunnerLost: no further step can be.
            Interrupted: see `interrupt`.
        """
        ...

    def interrupt(self, wanted: bool) -> None:
        """Whether the `step`, `embed`, `rank` or slice that runs now is to end early and raise
        `Interrupted`; from any thread. A runner whose steps are short may ignore it.
        """
        ...

    def embed(self, texts: Seq[Seq[int]], pooling: Pooling) -> NDArray[np.float32]:
        """One vector for each list of token ids: [len(texts), embedding_width], each of length 1.
        Touches no slot.

        Raises:
            UnsupportedParameter: this model has no such pooling.
            PromptTooLong: a text is longer than one step can take.
        """
        ...

    def rank(self, texts: Seq[Seq[int]]) -> NDArray[np.float32]:
        """How well the text in each list of token ids, a query and a text as the model wants them,
        answers its query: [len(texts)], higher is better. Touches no slot.

        Raises:
            UnsupportedParameter: this model was not trained for that.
            PromptTooLong: a text is longer than one step can take.
        """
        ...

    def begin_text(
        self, text: Seq[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> SlicedText:
        """Begin to embed one text, or without `pooling` to rank it, slice by slice. One at a time:
        the one before is closed. `embed` and `rank` may be called meanwhile. Only where
        `info.slices_texts`.

        Args:
            ready: called from any thread when it is ready, if it is not at once.

        Raises:
            HearthError: as `embed` and `rank`; and `DoesNotFit`.
        """
        ...

    def close(self) -> None:
        """Free everything; the runner cannot be used afterwards."""
        ...
