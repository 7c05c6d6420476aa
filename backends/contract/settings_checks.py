"""The bounds of `ModelSettings` that hold for every runner; what one of them has besides, it checks
itself.
"""

from __future__ import annotations

import math
from typing import Final, get_args

from hearth.backends.contract.models import Dtype, KvPool, KvType, ModelSettings
from hearth.backends.errors import InvalidParameter

MAX_THREADS: Final = 512
MAX_CONTEXT: Final = 1 << 24
MAX_BATCH: Final = 8192
"""Tokens of one step."""


def check_settings(settings: ModelSettings, max_sequences: int) -> None:
    """Refuse values that no runner can take.

    Args:
        max_sequences: that the runner can run at the same time.

    Raises:
        InvalidParameter: with the name of the field and its bounds.
    """
    _in_range("context", settings.context, 1, MAX_CONTEXT)
    _in_range("threads", settings.threads, 1, MAX_THREADS)
    _in_range("batch_threads", settings.batch_threads, 1, MAX_THREADS)
    _in_range("gpu_layers", settings.gpu_layers, 0, 1 << 20)
    _in_range("max_batch_tokens", settings.max_batch_tokens, 1, MAX_BATCH)
    _in_range("max_sessions", settings.max_sessions, 1, max_sequences)
    _in_range("max_waiting", settings.max_waiting, 0, 1 << 20)
    _in_range("kv_budget_bytes", settings.kv_budget_bytes, 1, 1 << 60)
    both = (settings.threads, settings.batch_threads)
    if settings.deterministic and None not in both and len(set(both)) > 1:
        raise InvalidParameter(
            "batch_threads",
            f"threads is {both[0]} and batch_threads {both[1]}; with deterministic they are one.",
            "Set only threads (--threads).",
        )
    _is_positive("target_itl_ms", settings.target_itl_ms, math.inf)
    _is_positive("memory_fraction", settings.memory_fraction, 1.0)
    _is_one_of("kv_type", settings.kv_type, get_args(KvType))
    _is_one_of("kv_pool", settings.kv_pool, get_args(KvPool))
    if settings.dtype is not None:
        _is_one_of("dtype", settings.dtype, get_args(Dtype))


def _is_positive(name: str, value: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most or math.isinf(value):
        bound = "" if math.isinf(most) else f" and at most {most:g}"
        raise InvalidParameter(name, f"{name} is {value!r}; it must be a number above 0{bound}.")


def _is_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidParameter(
            name, f"{name} {value!r} is not known.", f"Use one of {', '.join(sorted(known))}."
        )


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(
            name, f"{name} is {value!r}; it must be a whole number in {low}..{high}."
        )
