"""What a step found, as the engine asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.shortlist import Shortlist, ShortlistSpec
from hearth.kernels.cuda.elementwise import row_peaks
from hearth.kernels.cuda.matrix import has_triton

Logits = NDArray[np.float32]


def step_result(rows: Sequence[Row], logits: Tensor) -> StepResult:
    """The result of a step with `rows`: at most two copies to the host, one of the shortlists that
    rows ask for, and one of the logits of all other rows.

    Args:
        logits: [outputs of all rows, V] float32.
    """
    specs: dict[int, ShortlistSpec] = {}
    last: list[int] = []
    whole: dict[int, slice] = {}
    copied: list[int] = []
    at = 0
    for row in rows:
        if row.shortlist is not None:
            specs[row.slot] = row.shortlist
            last.append(at + row.outputs - 1)
        elif row.outputs:
            whole[row.slot] = slice(len(copied), len(copied) + row.outputs)
            copied += range(at, at + row.outputs)
        at += row.outputs
    made = shortlists(logits, last, list(specs.values())) if specs else []
    on_host = _some(logits, copied).cpu().numpy()
    return StepResult(
        {slot: on_host[places] for slot, places in whole.items()},
        dict(zip(specs, made, strict=True)),
    )


def shortlists(
    logits: Tensor, rows: Sequence[int], specs: Sequence[ShortlistSpec]
) -> list[Shortlist]:
    """The shortlists of some rows, in one copy to the host.

    Args:
        logits: [outputs of all rows, V] float32 on any device, left unchanged.
        rows: which of them.
        specs: what is asked of each.
    """
    fetches = [partial(fetch_row, logits, row) for row in rows]
    logits = _some(logits, rows)
    size = logits.shape[-1]
    count = min(max(spec.count for spec in specs), size)
    peaks = peaks_of(logits)
    if count == 1:
        lines = peaks.cpu().tolist()
        return [greedy_shortlist(*one, size) for one in zip(lines, fetches, strict=True)]
    largest = logits.topk(count, dim=-1)
    named = np.zeros((len(specs), max(len(spec.ids) for spec in specs)), dtype=np.int64)
    for row, spec in zip(named, specs, strict=True):
        row[: len(spec.ids)] = spec.ids
    # From memory that is not pinned CUDA copies aside before it returns.
    more = torch.from_numpy(named).to(logits.device, non_blocking=logits.is_cuda)
    ids = torch.cat((largest.indices, more), dim=1).sort(dim=-1).values
    # Ids are exact in float32 up to 2**24, beyond any vocabulary.
    columns = torch.cat((peaks, largest.values[:, -1:], ids, logits.gather(-1, ids)), dim=1)
    found = []
    for line, fetch in zip(columns.cpu().numpy(), fetches, strict=True):
        repeated, values = np.split(line[4:], 2)
        is_first = np.diff(repeated, prepend=-1) > 0
        found.append(
            Shortlist(
                best=int(line[2]),
                ids=repeated[is_first].astype(np.intp),
                values=values[is_first],
                floor=-math.inf if count == size else float(line[3]),
                log_sum=float(line[0]) + math.log(line[1]),
                vocab_size=size,
                row=fetch,
            )
        )
    return found


def peaks_of(logits: Tensor) -> Tensor:
    """[rows, 3] float32 of [rows, V]: of each row the largest logit, the sum of exponentials of all
    without it, which is NaN where one is not finite, and the place of the largest.
    """
    if has_triton(logits.device.type):
        return row_peaks(logits)
    peak = logits.amax(dim=-1, keepdim=True)
    total = (logits - peak).exp_().sum(dim=-1, keepdim=True)
    return torch.cat((peak, total, logits.argmax(dim=-1, keepdim=True)), dim=1)


def greedy_shortlist(peaks: Sequence[float], row: Callable[[], Logits], size: int) -> Shortlist:
    """Of the likeliest token alone.

    Args:
        peaks: a row of what `peaks_of` gives.
        row: fetches all logits.
        size: of the vocabulary.
    """
    peak, total, best = peaks
    return Shortlist(
        best=int(best),
        ids=np.array([best], np.intp),
        values=np.array([peak], np.float32),
        floor=-math.inf if size == 1 else peak,
        log_sum=peak + math.log(total),
        vocab_size=size,
        row=row,
    )


def fetch_row(logits: Tensor, row: int) -> Logits:
    """[V]: one row, on the host."""
    found: Logits = logits[row].cpu().numpy()
    return found


def _some(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Some `rows` of `logits`, ascending; no copy where they are the first of them, and nothing
    waits for the device.
    """
    if not rows or rows[-1] == len(rows) - 1:
        return logits[: len(rows)]
    # From memory that is not pinned CUDA copies aside before it returns.
    places = torch.tensor(rows).to(logits.device, non_blocking=logits.is_cuda)
    return logits.index_select(0, places)
