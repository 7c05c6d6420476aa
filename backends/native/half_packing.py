"""Matrices of half precision for processors that have no instructions for it: one after the other,
`HalfLinear`s take the places of a loaded model's matrices.

To make them takes longer than to read their file, so that loading does not wait for more than a
moment of it. The rest is done between steps: at once without requests, and in a small part
of the time otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import torch
from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder, Embedding
from hearth.backends.native.models.experts import ExpertMatrix, PackedExpertMatrix
from hearth.backends.native.models.half_linear import HalfLinear
from hearth.backends.native.models.parts import Matrix
from hearth.kernels.half_matrix import NUMBERS_OF_A_PART, HalfMatrix, HalfRows, NotHalf, pack

log = logging.getLogger(__name__)

_REST: Final = 4.0
"""Times as long as it packed, it leaves the processor to those who are computing."""
_OUTPUT: Final = "output"


class HalfPacking:
    """Packs the matrices of a decoder in a thread of its own, and never while a step runs.

    A matrix that float16 does not hold stays as it is.

    Args:
        decoder: with weights, on the processor; it is not changed elsewhere.
        threads: that pack at the same time.
    """

    def __init__(self, decoder: Decoder, threads: int) -> None:
        self._decoder = decoder
        self._threads = threads
        self._lock = threading.Lock()
        self._steps = self._seen = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="half packing", daemon=True)
        self._thread.start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """For as long as a step runs, nothing is packed, and no matrix changes."""
        with self._lock:
            self._steps += 1
            yield

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is packed; False if that takes longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop where it is."""
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            with ThreadPoolExecutor(
                self._threads, thread_name_prefix="pack", initializer=_compute_alone
            ) as workers:
                jobs = self._jobs()
                while (some := list(islice(jobs, self._threads))) and not self._stopping.is_set():
                    self._round(some, workers)
        except (MemoryError, RuntimeError):
            # All that was not packed computes on as it is.
            log.exception("packing matrices ended early")

    def _round(self, jobs: list[_Job], workers: ThreadPoolExecutor) -> None:
        """Pack some rows, then make way."""
        with self._lock:
            began = time.monotonic()
            for job, packed in zip(jobs, workers.map(_packed, jobs), strict=True):
                job.place.take(job, packed)
            took_s = time.monotonic() - began
        if self._steps != self._seen:
            self._seen = self._steps
            self._stopping.wait(_REST * took_s)

    def _jobs(self) -> Iterator[_Job]:
        """All there is to do. No matrix is held on to that was not come to or is done with."""
        names = [name for name, module in self._decoder.named_modules() if _is_half(module)]
        for name in names:
            parent, _, leaf = name.rpartition(".")
            place = _Place(self._decoder.get_submodule(parent), leaf)
            yield from place.jobs(self._decoder.get_submodule(name))
        embedding = self._decoder.embedding
        if self._decoder.output is None and isinstance(embedding, Embedding):
            yield from _Place(self._decoder, _OUTPUT).jobs(embedding)


@dataclass(slots=True)
class _Job:
    """Some rows to pack."""

    place: _Place
    matrix: int
    """Among those of the place: the number of an expert."""
    rows: Tensor
    is_last: bool
    """Of the place."""


@dataclass(slots=True)
class _Place:
    """Where a module is, and what will take its place."""

    parent: nn.Module
    leaf: str
    of_experts: bool = False
    bias: Tensor | None = None
    parts: list[list[HalfRows]] = field(default_factory=list)
    """Of each matrix."""
    fails: bool = False

    def jobs(self, module: nn.Module) -> Iterator[_Job]:
        """What to pack of a `Matrix`, `ExpertMatrix` or `Embedding`, up to its last rows."""
        weight: Tensor = module.get_parameter("weight")
        self.bias = getattr(module, "bias", None)
        self.of_experts = isinstance(module, ExpertMatrix)
        matrices = list(weight) if self.of_experts else [weight]
        self.parts = [[] for _ in matrices]
        for index, matrix in enumerate(matrices):
            slices = torch.split(matrix, max(NUMBERS_OF_A_PART // matrix.shape[1], 1))
            for number, rows in enumerate(slices, 1):
                if self.fails:
                    return
                is_last = number == len(slices) and index == len(matrices) - 1
                yield _Job(self, index, rows, is_last)

    def take(self, job: _Job, packed: HalfRows | None) -> None:
        """What became of `job`; after the last one the module is replaced."""
        if packed is None:
            self.fails = True
        elif not self.fails:
            self.parts[job.matrix].append(packed)
        if self.fails:
            self.parts = []
        elif job.is_last:
            setattr(self.parent, self.leaf, self._made())

    def _made(self) -> nn.Module:
        matrices = [HalfMatrix(parts) for parts in self.parts]
        if not self.of_experts:
            return HalfLinear(matrices[0], self.bias)
        biases = [None] * len(matrices) if self.bias is None else list(self.bias)
        return PackedExpertMatrix(map(HalfLinear, matrices, biases))


def _packed(job: _Job) -> HalfRows | None:
    """None: float16 does not hold the rows."""
    try:
        return pack(job.rows)
    except NotHalf:
        return None


def _is_half(module: nn.Module) -> bool:
    if not isinstance(module, Matrix | ExpertMatrix):
        return False
    return module.weight.dtype in (torch.float16, torch.bfloat16)


def _compute_alone() -> None:
    """PyTorch's number of threads, for the thread that calls it."""
    torch.set_num_threads(1)
