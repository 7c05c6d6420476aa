"""Pages of keys and values for texts that are computed separately from the sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hearth.backends.engine.kv.group import most_blocks
from hearth.backends.errors import DoesNotFit
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.footprint import PAGE
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.paged_attention import PagedRow
from hearth.kernels import device as devices
from hearth.quant.families.config import ModelConfig


class TextPages:
    """A pool that belongs to some texts only.

    For layers with a window it keeps only what a pass can see.

    Args:
        lengths: tokens of each text.
        step_tokens: most tokens of a text in one pass.
        dtypes: of keys and of values.

    Raises:
        DoesNotFit: the device has no memory for the pages.
    """

    def __init__(
        self,
        config: ModelConfig,
        lengths: Sequence[int],
        *,
        step_tokens: int,
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
    ) -> None:
        self._tables: list[tuple[list[int], ...]] = []
        blocks = [0] * len(config.groups)
        for length in lengths:
            pages = -(-length // PAGE)
            kept = [
                pages if window is None else min(pages, most_blocks(window, step_tokens, PAGE))
                for window in config.groups
            ]
            each = zip(blocks, kept, strict=True)
            self._tables.append(
                tuple([first + page % count for page in range(pages)] for first, count in each)
            )
            blocks = [first + count for first, count in zip(blocks, kept, strict=True)]
        none = [0] * len(blocks)
        self.pool = KvPool(config, page=PAGE, dtypes=dtypes, device=device, most=blocks, start=none)
        needed = sum(self.pool.block_bytes(group) * count for group, count in enumerate(blocks))
        free = available_bytes() if device.type == "cpu" else devices.free_bytes(device)
        if needed > free or not all(map(self.pool.grow, range(len(blocks)), blocks)):
            raise DoesNotFit(
                f"Embedding a text of this length needs {needed / 1e9:.2f} GB for keys and values; "
                f"{free / 1e9:.2f} GB are available.",
                "Split the text, or close other programs.",
                needed_bytes=needed,
                available_bytes=free,
            )
        self.nbytes = needed

    def rows(self, counts: Sequence[int], start: int = 0) -> list[PagedRow]:
        """Rows for a pass over the next `counts` tokens of the texts, after `start` tokens each."""
        each = zip(counts, self._tables, strict=True)
        return [PagedRow(start, count, tables) for count, tables in each]
