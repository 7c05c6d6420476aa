"""What the rows of a step see of the paged KV pool, in the form that GPU kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.native.paged_attention import PagedRow


class Reaches:
    """What the rows of a step see of a group.

    Each row begins with the block where the window of its first token begins. Earlier blocks, which
    the window has left behind, are omitted.
    """

    def __init__(self, rows: Sequence[PagedRow], group: int, window: int | None, page: int) -> None:
        slots = []
        tables = []
        keys = []
        begins = []
        for row in rows:
            end = row.start + row.count
            first = 0 if window is None else max(row.start + 1 - window, 0) // page
            table = np.array(row.tables[group][first : -(-end // page)], dtype=np.int32)
            at = np.arange(row.start, end)
            slots.append(table[at // page - first].astype(np.int64) * page + at % page)
            tables.append(table)
            keys.append(end - first * page)
            begins.append(0 if window is None else max(row.start + 1 - window, 0) - first * page)
        self.slots: NDArray[np.int64] = np.concatenate(slots)
        self.keys: NDArray[np.int32] = np.array(keys, dtype=np.int32)
        self.begins: NDArray[np.int32] = np.array(begins, dtype=np.int32)
        """Index, among the row's keys, of the first that its first token sees."""
        self.table: NDArray[np.int32] = np.zeros((len(rows), max(map(len, tables))), np.int32)
        """Block tables, padded with block 0, which is not seen."""
        for line, table in zip(self.table, tables, strict=True):
            line[: len(table)] = table


def to_device(parts: Sequence[NDArray[np.int32]], device: torch.device) -> Sequence[Tensor]:
    """Copy `parts` to the device in one asynchronous copy."""
    host = torch.empty(sum(map(len, parts)), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(parts, out=host.numpy())
    return torch.split(host.to(device, non_blocking=True), [len(part) for part in parts])
