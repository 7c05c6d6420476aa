"""How much memory keys and values take, without torch.

Used for planning, and by front ends before anything is loaded.
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
"""The window of one kept prefix has reserved room per this many tokens of a pool. Kept prefixes use
half of a pool, so each may have 32,768 tokens; the windows of more, shorter prefixes only find room
while fewer sessions run.
"""


@dataclass(frozen=True, slots=True)
class KvSizes:
    """Memory that the pages of a model take.

    Layers without a window keep every token of the pool. Layers with a window keep the tokens that
    running sessions can see in a step (`most_blocks`), and the windows at the ends of some kept
    prefixes: half as many prefixes as there are sessions, or more in a large pool. They never keep
    more than the whole pool.
    """

    windows: tuple[int | None, ...]
    """Windows of the groups of layers (`ModelConfig.groups`)."""
    token_bytes: tuple[int, ...]
    """Bytes of one token in all layers of each group."""
    page: int
    """Tokens of a block."""
    slots: int
    """Sessions that run at the same time."""
    step_tokens: int
    """Most tokens of a step."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one more token in the pool, in the layers without a window."""
        return self._bytes((1,) * len(self.windows), windows=False)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return self.page * sum(self.token_bytes)

    def pages(self, tokens: int) -> int:
        """Number of blocks for `tokens` tokens of one sequence."""
        return math.ceil(tokens / self.page)

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks of each group for a pool of `tokens` tokens."""
        pages = self.pages(tokens)
        ends = max(math.ceil(self.slots / 2), tokens // _TOKENS_OF_AN_END)
        return tuple(
            pages if window is None else min(pages, self._window_blocks(window, ends))
            for window in self.windows
        )

    def pool_bytes(self, tokens: int) -> int:
        """Bytes of a pool of `tokens` tokens, in whole pages; never decreases with `tokens`."""
        blocks = self.blocks(tokens)
        return self.page * (self._bytes(blocks, windows=False) + self._bytes(blocks, windows=True))

    def window_bytes(self, tokens: int) -> int:
        """The part of `pool_bytes` that layers with a window take."""
        return self.page * self._bytes(self.blocks(tokens), windows=True)

    def seen_window_bytes(self, tokens: int) -> int:
        """Bytes that a token after `tokens` - 1 others can see in layers with a window."""
        return sum(
            min(tokens, window) * size
            for window, size in zip(self.windows, self.token_bytes, strict=True)
            if window is not None
        )

    def tokens_in(
        self, room_bytes: int, most: int, taken: Callable[[int], int] | None = None
    ) -> int:
        """Tokens of the largest pool that fits into `room_bytes`, in whole pages.

        Args:
            most: the pool is no larger than this many tokens need.
            taken: bytes needed for a pool of a number of tokens, if more than `pool_bytes`.
        """
        taken = taken or self.pool_bytes
        pages = range(1, self.pages(most) + 1)
        return self.page * bisect_right(
            pages, room_bytes, key=lambda count: taken(count * self.page)
        )

    def checked_budget(self, settings: ModelSettings) -> int | None:
        """The KV budget in bytes, or None.

        Raises:
            DoesNotFit: not even one token, or not the requested context, fits into the budget.
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
        """Bytes of `counts` tokens of each group, of the groups with or without windows."""
        return sum(
            count * size
            for count, size, window in zip(counts, self.token_bytes, self.windows, strict=True)
            if windows == (window is not None)
        )


def kv_sizes(config: ModelConfig, settings: ModelSettings, *, page: int) -> KvSizes:
    """The sizes of a model that is loaded with `settings`.

    A window as large as the context in use counts as none.

    Args:
        page: tokens of a block.

    Raises:
        InvalidParameter: the native runner does not support the KV type.
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
    """Most bytes of copies of keys and values that wait to be written to disk.

    Whole parts are queued until they exceed the limit of the queue; but at most half of a pool of
    `tokens` tokens is, because the rest is written by then
    (docs/results/2026-11-26-quantization.md).
    """
    if not settings.kv_disk_budget_bytes:
        return 0
    part = PART_TOKENS * sizes.bytes_per_token
    parts = math.ceil(MOST_QUEUED_BYTES / part) if part else 0
    return min(parts * part, sizes.pool_bytes(tokens) // 2)


def step_tokens(settings: ModelSettings) -> int:
    """Most tokens of a step, at least one of each session."""
    return max(settings.max_batch_tokens, settings.max_sessions)
