"""Draws the tokens of a step where its logits are: what `hearth.backends.engine.sampler` draws.

Only the tokens come to the host, and the log probabilities that were asked for, in one copy for all
rows. The random numbers come from the host, so that a draw is a function of (seed, position) here
too, and every draw is the sampler's own: where the rounding of the device might decide otherwise,
nothing is drawn, and the sampler looks at the logits of that row itself. So it does where logits
are not finite, or all are banned, which it has the words for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hearth.backends.engine.draw_spec import Drawn, DrawSpec, Sparse
from hearth.backends.engine.sampler import SMALL_POOL
from hearth.backends.engine.truncation import SMALLEST_TEMPERATURE
from hearth.backends.native.candidates import (
    DOUBLE,
    ROUNDED,
    SINGLE,
    Decision,
    Precision,
    largest,
    likely,
    nucleus,
    pick,
    typical,
    weights_of,
    without_top_choices,
)

_SLICE_ELEMENTS: Final = 1 << 21
"""Candidates that are looked at together; some ten numbers of eight bytes are made for each."""


def draw(
    logits: Tensor, specs: Sequence[DrawSpec], *, dtype: torch.dtype | None = None
) -> list[Drawn | None]:
    """A token from each row of `logits`.

    Args:
        logits: [n, V] float32 on any device, left unchanged.
        specs: n of them.
        dtype: to compute probabilities in; float64 where the device has it, and float32 on Apple's
            GPUs, where one draw in some hundreds is left to the sampler.

    Returns:
        n; None where the sampler must draw.
    """
    if dtype is None:
        dtype = torch.float32 if logits.device.type == "mps" else torch.float64
    size = logits.shape[-1]
    work = _adjusted(logits, specs)
    is_finite = logits.amax(dim=-1).isfinite() & ~logits.isnan().any(dim=-1)
    if work is not logits:
        is_finite &= work.amax(dim=-1).isfinite()
    ids = work.argmax(dim=-1)
    for rows, precision in _groups(specs, size, dtype):
        at = _sent(torch.tensor(rows), logits.device)
        some = work if len(rows) == len(specs) else work[at]
        ids = ids.index_copy(0, at, _sample(some, [specs[row] for row in rows], precision))
    table = torch.where(is_finite, ids, -1).to(dtype)[:, None]
    asked = [spec.params.logprobs for spec in specs if spec.params.logprobs is not None]
    most = min(max(asked, default=0), size)
    if asked:
        table = torch.cat((table, _logprobs(logits, ids, most, dtype)), dim=1)
    return [
        None if row[0] < 0 else _drawn(row, spec.params.logprobs, most)
        for row, spec in zip(table.cpu().tolist(), specs, strict=True)
    ]


def _drawn(row: list[float], count: int | None, most: int) -> Drawn:
    """What a row of the table says: token, its log probability, then `most` ids and as many log
    probabilities of the likeliest.
    """
    token = int(row[0])
    if count is None:
        return Drawn(token)
    likeliest = zip(row[2 : 2 + most], row[2 + most :], strict=True)
    top = tuple((int(ident), value) for ident, value in islice(likeliest, count))
    return Drawn(token, row[1], top)


def _logprobs(logits: Tensor, ids: Tensor, most: int, dtype: torch.dtype) -> Tensor:
    """[n, 1 + 2 * most]: log probabilities of `ids` [n] (of anything for -1), then ids and log
    probabilities of the likeliest.
    """
    peak = logits.amax(dim=-1, keepdim=True)
    total = (logits - peak).exp().sum(dim=-1, keepdim=True, dtype=dtype)
    normaliser = peak.to(dtype) + total.log()
    likeliest = largest(logits, most) if most else ids.new_empty((len(ids), 0))
    named = torch.cat((ids[:, None].clamp(min=0), likeliest), dim=1)
    found = (logits.gather(-1, named).to(dtype) - normaliser).clamp(max=0.0)
    return torch.cat((found[:, :1], likeliest.to(dtype), found[:, 1:]), dim=1)


def _groups(
    specs: Sequence[DrawSpec], size: int, dtype: torch.dtype
) -> Iterator[tuple[list[int], Precision]]:
    """Rows that are not greedy: those whose pools the sampler takes as small, then the others; in
    each group as few at a time as memory should hold.
    """
    sampled = [row for row, spec in enumerate(specs) if not spec.is_greedy]
    pools = {row: _pool_size(specs[row], size) for row in sampled}
    small = [row for row in sampled if pools[row] <= SMALL_POOL]
    wide = [row for row in sampled if pools[row] > SMALL_POOL]
    # Small pools are found with a few numbers of four bytes for each token of the vocabulary.
    found_in = max(SMALL_POOL, size // 4)
    for rows, precision, width in ((small, DOUBLE, found_in), (wide, ROUNDED, size)):
        together = max(1, _SLICE_ELEMENTS // width)
        for start in range(0, len(rows), together):
            used = SINGLE if dtype == torch.float32 else precision
            yield rows[start : start + together], used


def _pool_size(spec: DrawSpec, size: int) -> int:
    return spec.params.top_k if 0 < spec.params.top_k < size else size


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`, without waiting for what it is doing: CUDA copies what is not pinned
    aside before it returns.
    """
    return values.to(device, non_blocking=device.type == "cuda")


# ---- adjustments


def _adjusted(logits: Tensor, specs: Sequence[DrawSpec]) -> Tensor:
    """Bias, penalties and bans, on a copy; `logits` itself where there is nothing to do. The
    arithmetic is that of numpy to the bit.
    """
    if not any(spec.adjusts for spec in specs):
        return logits
    work = logits.clone(memory_format=torch.contiguous_format)
    flat = work.view(-1)
    size = logits.shape[-1]

    def on_device(parts: Sequence[Sparse], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        places = [ids + row * size for row, (ids, _) in zip(rows, parts, strict=True)]
        values = [values for _, values in parts]
        return (
            _sent(torch.from_numpy(np.concatenate(places)), logits.device),
            _sent(torch.from_numpy(np.concatenate(values)), logits.device),
        )

    biases = {row: spec.bias for row, spec in enumerate(specs) if spec.bias is not None}
    if biases:
        places, values = on_device(list(biases.values()), list(biases))
        flat[places] += values
    seen = {row: spec.seen for row, spec in enumerate(specs) if spec.seen is not None}
    if seen:
        places, counts = on_device(list(seen.values()), list(seen))
        sizes = [len(ids) for ids, _ in seen.values()]
        flat[places] = _penalised(flat[places], counts, [specs[row] for row in seen], sizes)
    repeated = {row: spec.repeated for row, spec in enumerate(specs) if spec.repeated is not None}
    if repeated:
        places, values = on_device(list(repeated.values()), list(repeated))
        flat[places] -= values
    banned = [row * size + token for row, spec in enumerate(specs) for token in spec.banned]
    if banned:
        flat[_sent(torch.tensor(banned), logits.device)] = -math.inf
    return work


def _penalised(
    values: Tensor, counts: Tensor, specs: Sequence[DrawSpec], sizes: Sequence[int]
) -> Tensor:
    """`penalties.penalise` for `sizes` values of each of `specs`; 1 and 0 change no bit."""
    each = [
        (
            spec.params.repetition_penalty,
            spec.params.frequency_penalty,
            spec.params.presence_penalty,
        )
        for spec in specs
    ]
    table = np.repeat(np.array(each, dtype=np.float32).T, sizes, axis=1)
    repetition, frequency, presence = _sent(torch.from_numpy(table), values.device).unbind(0)
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    return scaled - frequency * counts - presence


# ---- draws


def _sample(logits: Tensor, specs: Sequence[DrawSpec], precision: Precision) -> Tensor:
    """A token from each row of adjusted logits: [n] int64; -1 where rounding might decide
    otherwise.
    """
    all_params = [spec.params for spec in specs]
    pools = [_pool_size(spec, logits.shape[-1]) for spec in specs]
    columns = [
        pools,
        [params.typical_p for params in all_params],
        [params.top_p for params in all_params],
        [math.log(params.min_p) if params.min_p > 0.0 else -math.inf for params in all_params],
        [params.xtc_threshold for params in all_params],
        [spec.is_xtc_active for spec in specs],
        [max(params.temperature, SMALLEST_TEMPERATURE) for params in all_params],
        [spec.number for spec in specs],
    ]
    table = _sent(torch.tensor(columns, dtype=precision.dtype), logits.device)[:, :, None]
    top_k, typical_p, top_p, log_min_p, threshold, acts, temperature, number = table.unbind(0)
    values, ids = _candidates(logits, pools, top_k)
    values = values.to(precision.dtype)
    is_near = torch.zeros_like(number, dtype=torch.bool)

    def narrow(decision: Decision, wanted: Tensor) -> None:
        nonlocal values, is_near
        kept, near = decision
        values = torch.where(kept | ~wanted, values, -math.inf)
        is_near = is_near | (near & wanted)

    if any(params.typical_p < 1.0 for params in all_params):
        narrow(typical(values, typical_p, precision), typical_p < 1.0)
    if any(params.top_p < 1.0 for params in all_params):
        narrow(nucleus(values, top_p, precision), top_p < 1.0)
    if any(params.min_p > 0.0 for params in all_params):
        narrow(likely(values, log_min_p, precision), log_min_p > -math.inf)
    if any(spec.is_xtc_active for spec in specs):
        narrow(without_top_choices(values, threshold, precision), acts > 0)
    weights = weights_of(values, precision, precision.rounded(temperature))
    place, near = pick(weights, number, precision)
    token = place if ids is None else ids.gather(-1, place)
    return torch.where(is_near | near, -1, token)[:, 0]


def _candidates(
    logits: Tensor, pools: Sequence[int], top_k: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Logits [n, K] of the `pools[row]` likeliest tokens of each row, -inf beyond them, and their
    ids, ascending; None: they are the whole vocabulary.

    Args:
        top_k: `pools` as a column on the device.
    """
    if min(pools) == logits.shape[-1]:
        return logits, None
    by_rank = largest(logits, max(pools))
    ranks = torch.arange(by_rank.shape[-1], device=logits.device)
    values = torch.where(ranks < top_k, logits.gather(-1, by_rank), -math.inf)
    ids, order = by_rank.sort(dim=-1)
    return values.gather(-1, order), ids
