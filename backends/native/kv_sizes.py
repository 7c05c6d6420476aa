"""How much memory keys and values take: the arithmetic of planning, and of front ends that ask
before anything is loaded. Without torch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.kv.disk import MOST_QUEUED_BYTES
from hearth.backends.engine.kv.group import most_blocks
from hearth.backends.engine.kv.manager import PART_TOKENS
from hearth.backends.errors import DoesNotFit
from hearth.backends.native.model_folder import kv_bytes
from hearth.quant.families.config import ModelConfig

_TOKENS_OF_AN_END: Final = 65_536
"""Tokens of a pool for each kept prefix whose window is sure to have room. Kept prefixes have half
of a pool, so that is one of 32,768 tokens; shorter ones find room where fewer sessions run.
"""


@dataclass(frozen=True, slots=True)
class KvSizes:
    """What the pages of a model take.

    Layers that see everything keep each token of the pool. Those with a window keep what the
    sessions that run can look at in a step (`most_blocks`), and the windows at the ends of some
    kept prefixes: of half as many as there are sessions, or of more in a large pool. They never
    keep more than the whole pool.
    """

    windows: tuple[int | None, ...]
    """Of the groups of layers (`ModelConfig.groups`)."""
    token_bytes: tuple[int, ...]
    """Of one token, in all layers of each group."""
    page: int
    """Tokens of a block."""
    slots: int
    """Sessions that run at the same time."""
    step_tokens: int
    """Most tokens of a step."""

    @property
    def bytes_per_token(self) -> int:
        """Of one more token in the pool: of the layers that see everything."""
        return self._bytes((1,) * len(self.windows), windows=False)

    @property
    def block_bytes(self) -> int:
        """Of a block in all layers."""
        return self.page * sum(self.token_bytes)

    def pages(self, tokens: int) -> int:
        """Blocks for `tokens` tokens of one sequence."""
        return math.ceil(tokens / self.page)

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Of each group, for a pool of `tokens` tokens."""
        pages = self.pages(tokens)
        ends = max(math.ceil(self.slots / 2), tokens // _TOKENS_OF_AN_END)
        return tuple(
            pages if window is None else min(pages, self._window_blocks(window, ends))
            for window in self.windows
        )

    def pool_bytes(self, tokens: int) -> int:
        """Of a pool of `tokens` tokens, in whole pages; never less for more tokens."""
        blocks = self.blocks(tokens)
        return self.page * (self._bytes(blocks, windows=False) + self._bytes(blocks, windows=True))

    def window_bytes(self, tokens: int) -> int:
        """Of these, what layers with a window take."""
        return self.page * self._bytes(self.blocks(tokens), windows=True)

    def seen_window_bytes(self, tokens: int) -> int:
        """What a token after `tokens` - 1 others sees in layers with a window."""
        return sum(
            min(tokens, window) * size
            for window, size in zip(self.windows, self.token_bytes, strict=True)
            if window is not None
        )

    def tokens_in(
        self, room_bytes: int, most: int, taken: Callable[[int], int] | None = None
    ) -> int:
        """The largest pool in `room_bytes`, in tokens of whole pages; no more than what `most`
        tokens need.

        Args:
            taken: bytes by tokens of the pool, if it takes more than `pool_bytes`.
        """
        taken = taken or self.pool_bytes
        pages = range(1, self.pages(most) + 1)
        return self.page * bisect_right(
            pages, room_bytes, key=lambda count: taken(count * self.page)
        )

    def checked_budget(self, settings: ModelSettings) -> int | None:
        """The KV budget in bytes; None: there is none.

        Raises:
            DoesNotFit: not one token fits into it, or not the context that was asked for.
        """
        budget = settings.kv_budget_bytes
        need = self.pool_bytes(settings.context or 1)
        if budget is not None and need > budget:
            raise DoesNotFit(
                f"{settings.context or self.page:,} tokens need {need:,} bytes for keys and "
                f"values; the KV budget is {budget:,} bytes.",
                f"Set a kv_budget (--kv-budget) of {need} or more, or a smaller context (--ctx).",
                needed_bytes=need,
                available_bytes=budget,
                context=settings.context,
            )
        return budget

    def _window_blocks(self, window: int, ends: int) -> int:
        running = self.slots * most_blocks(window, self.step_tokens, self.page)
        return running + ends * most_blocks(window, 0, self.page)

    def _bytes(self, counts: tuple[int, ...], *, windows: bool) -> int:
        """Of `counts` tokens of each group that has a window, or of each that has none."""
        return sum(
            count * size
            for count, size, window in zip(counts, self.token_bytes, self.windows, strict=True)
            if windows == (window is not None)
        )


def kv_sizes(config: ModelConfig, settings: ModelSettings, *, page: int) -> KvSizes:
    """The sizes of a model that is loaded with `settings`. A window that holds the whole context in
    use counts as none.

    Args:
        page: tokens of a block.

    Raises:
        InvalidParameter: a KV type that the native runner does not have.
    """
    config = config.for_context(settings.context or config.context)
    layer_bytes = kv_bytes(config, settings.kv_type, settings.value_type)
    windows = [layer.window for layer in config.layers]
    return KvSizes(
        windows=config.groups,
        token_bytes=tuple(layer_bytes * windows.count(window) for window in config.groups),
        page=page,
        slots=settings.max_sessions,
        step_tokens=step_tokens(settings),
    )


def queued_bytes(sizes: KvSizes, settings: ModelSettings, tokens: int) -> int:
    """Copies of keys and values that wait to be written to disk, with a pool of `tokens` tokens:
    whole parts, until they are more than the queue takes. At most half of the pool: the rest was
    written by then (docs/results/2026-11-26-quantization.md).
    """
    if not settings.kv_disk_budget_bytes:
        return 0
    part = PART_TOKENS * sizes.bytes_per_token
    parts = math.ceil(MOST_QUEUED_BYTES / part) if part else 0
    return min(parts * part, sizes.pool_bytes(tokens) // 2)


def step_tokens(settings: ModelSettings) -> int:
    """Most tokens of a step: one of each session at least."""
    return max(settings.max_batch_tokens, settings.max_sessions)
