"""Attention over the paged memory by PyTorch's own kernel for block tables: for NVIDIA cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.errors import InternalError
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.paged_attention import PagedRow
from hearth.backends.native.reaches import Reaches, to_device
from hearth.quant.families.config import ModelConfig

PAGE: Final = 256
"""Tokens of a block: the kernel in PyTorch (FlashAttention 2) takes multiples of it only."""
_MOST_WIDTH: Final = 256
_WIDTHS: Final = 8
"""Heads are as wide as a multiple of it."""
_DTYPES: Final = (torch.float16, torch.bfloat16)
_PARAMETERS: Final = frozenset(
    {"scale", "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"}
)


VarlenFunction = Callable[..., Tensor]
"""`torch.nn.attention.varlen.varlen_attn`, or what takes the same arguments."""


def can_read(config: ModelConfig) -> bool:
    """Whether the kernel has everything that this model's attention needs."""
    is_plain = not config.attention_softcap and not config.sinks
    return is_plain and config.head_dim <= _MOST_WIDTH and config.head_dim % _WIDTHS == 0


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the installed PyTorch attends over block tables on `device`, with queries, keys and
    values of `dtype`.
    """
    if device.type != "cuda" or dtype not in _DTYPES:
        return False
    try:
        return reads_block_tables(_torch_function(), device, dtype)
    except ImportError:
        return False


def reads_block_tables(function: VarlenFunction, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `function` has all parameters, and finds one token that the block table places in the
    second page of two: releases differ in which of their kernels know block tables, and cards in
    which kernels they run.
    """
    if not signature(function).parameters.keys() >= _PARAMETERS:
        return False
    pages = torch.zeros(2, PAGE, 1, 64, dtype=dtype, device=device)
    pages[1] = 1
    ends = torch.tensor([0, 1], dtype=torch.int32, device=device)
    one = torch.tensor([1], dtype=torch.int32, device=device)
    try:
        found = function(
            torch.ones(1, 2, 64, dtype=dtype, device=device),
            pages,
            pages,
            ends,
            ends,
            1,
            1,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=one,
            block_table=one[None],
            num_splits=1,
        )
    except RuntimeError:  # No kernel of this release, for this card, takes what it was given.
        return False
    return bool((found == 1).all())


class VarlenAttention:
    """Implements `Attend` and `FinishesHeads` for one step: one call a layer for all of its rows,
    of one token or of many.

    Args:
        pool: keys and values, with the layout "pages"; its pages as `PAGE`, where the function is
            PyTorch's, and of float16 or bfloat16.
        config: of a model that `can_read` says yes to.
        rows: in the order of their tokens in the forward pass.
        function: None: PyTorch's.

    Raises:
        InternalError: the model, or the pool's layout, is not for this kernel.
    """

    def __init__(
        self,
        pool: KvPool,
        config: ModelConfig,
        rows: Sequence[PagedRow],
        *,
        function: VarlenFunction | None = None,
    ) -> None:
        if not can_read(config) or pool.layout != "pages":
            raise InternalError(
                f"A {config.family} model with pages laid out as {pool.layout} came to a kernel"
                " that cannot read them."
            )
        self._pool = pool
        self._scale = config.scale
        self._queries = config.heads
        self._function = function or _torch_function()
        self._step = _moved(rows, config.groups, pool.page, pool.layer(0)[0].device)

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self._pool.write(layer, self._group(layer).slots, key_value)
        return self._attended(layer, query, sinks)

    def finished(
        self,
        layer: int,
        heads: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rotary: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See `FinishesHeads`."""
        slots = self._group(layer).slots
        self._pool.finish_and_write(layer, slots, heads, self._queries, norms, rotary)
        return self._attended(layer, heads[:, : self._queries], sinks)

    def _group(self, layer: int) -> _Group:
        return self._step.groups[self._pool.group_of[layer]]

    def _attended(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        if sinks is not None:
            raise InternalError("Attention with sinks came to a kernel that has none.")
        group = self._group(layer)
        key, value = self._pool.layer(layer)
        found = self._function(
            query.to(key.dtype),
            key,
            value,
            self._step.query_ends,
            group.key_ends,
            self._step.most_queries,
            group.most_keys,
            scale=self._scale,
            window_size=group.window_size,
            enable_gqa=True,
            seqused_k=group.keys,
            block_table=group.table,
            # More would depend on the batch; and without it PyTorch's kernel gives NaN at times.
            num_splits=1,
        )
        return found.to(query.dtype)


@dataclass(frozen=True, slots=True)
class _Group:
    """What the layers of a group need, on the device."""

    window_size: tuple[int, int]
    """Tokens that one sees before and after it; -1: all."""
    slots: Tensor
    """[tokens] int64 where keys and values go, as numbers of tokens in the pool."""
    keys: Tensor
    """[rows] int32 tokens that each row's blocks hold, the new ones included."""
    key_ends: Tensor
    """[rows + 1] int32 their sums, from 0 on."""
    table: Tensor
    """[rows, most blocks of a row] int32."""
    most_keys: int


@dataclass(frozen=True, slots=True)
class _Step:
    query_ends: Tensor
    """[rows + 1] int32 sums of the rows' new tokens, from 0 on."""
    most_queries: int
    groups: tuple[_Group, ...]


def _moved(
    rows: Sequence[PagedRow], windows: Sequence[int | None], page: int, device: torch.device
) -> _Step:
    """All numbers of a step, on the device."""
    counts = np.array([row.count for row in rows], dtype=np.int32)
    reaches = [Reaches(rows, group, window, page) for group, window in enumerate(windows)]
    parts = [reach.slots.view(np.int32) for reach in reaches]  # First: eight bytes each.
    parts.append(_ends(counts))
    for reach in reaches:
        parts += [reach.keys, _ends(reach.keys), reach.table.ravel()]
    sent = iter(to_device(parts, device))
    slots = [next(sent).view(torch.int64) for _ in reaches]
    return _Step(
        next(sent),
        int(counts.max()),
        tuple(
            _Group(
                (-1 if window is None else window - 1, 0),
                places,
                next(sent),
                next(sent),
                next(sent).view(reach.table.shape),
                int(reach.keys.max()),
            )
            for window, places, reach in zip(windows, slots, reaches, strict=True)
        ),
    )


def _ends(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sums of `counts`, from 0 on."""
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return ends


def _torch_function() -> VarlenFunction:
    """Raises `ImportError` where this PyTorch has none."""
    from torch.nn.attention.varlen import varlen_attn

    # It gives a pair where it is asked for one, which is not done here.
    return cast(VarlenFunction, varlen_attn)
