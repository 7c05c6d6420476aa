"""Predicts on the GPU which token the host will draw from the largest logits, so that the next step
can begin before the host has drawn it. It is a guess: the host draws with the same random numbers
(`backends/engine/sampler.py`), and its result counts where the two differ by rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hearth.kernels.cuda.turns import take_turn


@triton.jit
def _hashes(ids, key):
    """uint64: for each of `ids` uint64, the id-th number of SplitMix64 with the state `key`."""
    mixed = (ids + 1) * 0x9E3779B97F4A7C15 + key
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def _logarithms(hashes):
    """Exponentially distributed float64 of mean 1, from the upper 52 bits of `hashes`."""
    return -tl.log(1.0 - ((hashes >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16)


@triton.jit
def guess_kernel(values, ids, peaks, about, out, count, LANES: tl.constexpr, EARLY: tl.constexpr):
    """out[rows] int64: the token of each row. Programs are rows.

    values [rows, count] float32, ids [rows, count] int64: the largest logits, largest first; peaks:
    [rows, 3] float32 (`fused.row_peaks_kernel`); about: [rows, 5] int64: the key of the random
    numbers, how many of the largest logits may be drawn (top-k; 0: the whole vocabulary), and the
    bits of three float64: temperature (0: the likeliest token is taken), the share of the sum of
    exponentials that the likeliest tokens must reach (top-p), and the logarithm of the smallest
    probability relative to the likeliest token's (min-p).
    """
    take_turn(EARLY)
    row = tl.program_id(0)
    at = tl.arange(0, LANES)
    mask = at < count
    place = row.to(tl.int64) * count + at
    value = tl.load(values + place, mask=mask, other=-float("inf")).to(tl.float64)
    token = tl.load(ids + place, mask=mask, other=0)
    own = about + row * 5
    key, most = tl.load(own).to(tl.uint64, bitcast=True), tl.load(own + 1)
    temperature = tl.load(own + 2).to(tl.float64, bitcast=True)
    share = tl.load(own + 3).to(tl.float64, bitcast=True)
    least = tl.load(own + 4).to(tl.float64, bitcast=True)
    below = value - tl.max(value, 0)
    weight = tl.exp(below)
    kept = mask & ((most == 0) | (at < most))
    weight = tl.where(kept, weight, 0.0)
    whole = tl.load(peaks + row * 3 + 1).to(tl.float64)
    whole = tl.where(most == 0, whole, tl.sum(weight, 0))
    kept = kept & (tl.cumsum(weight, 0) - weight < share * whole) & (below >= least)
    some = token.to(tl.uint64)
    other = key ^ 0xFFFFFFFFFFFFFFFF
    of_block = _hashes(some // 64, other)
    further = tl.where(of_block % 64 == some % 64, 0.0, _logarithms(_hashes(some, key)))
    number = further + _logarithms(of_block) / 64
    chance = tl.exp(below / tl.where(temperature > 0, temperature, 1.0))
    speed = tl.where(kept, chance / number, -1.0)
    winner = tl.argmax(speed, 0)
    drawn = tl.sum(tl.where(at == winner, token, 0), 0)
    best = tl.load(peaks + row * 3 + 2).to(tl.int64)
    tl.store(out + row, tl.where(temperature > 0, drawn, best))
