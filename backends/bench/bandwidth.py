"""Memory read bandwidth of this machine, which limits decoding: each step reads every weight."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

_BYTES = 256 << 20
"""Far larger than any cache."""
_ROUNDS = 4


def read_bytes_per_s(threads: int, size_bytes: int = _BYTES) -> float:
    """Bytes read per second: the best of four sums over `size_bytes`, split among `threads`."""
    array = np.ones(size_bytes // np.dtype(np.int64).itemsize, np.int64)
    parts = np.array_split(array, threads)
    best_s = min(_sum_s(parts) for _ in range(_ROUNDS))
    return array.nbytes / best_s


def _sum_s(parts: list[NDArray[np.int64]]) -> float:
    """Seconds to sum `parts`, each in its own thread; numpy releases the GIL meanwhile."""
    workers = [threading.Thread(target=np.add.reduce, args=(part,)) for part in parts]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began
