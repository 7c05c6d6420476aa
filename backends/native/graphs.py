"""CUDA graphs: operations that are recorded once and then started by one call."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import torch

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.experts import Experts

_EAGER_STEPS: Final = 1
"""Steps of a shape that run without a graph before one is recorded, because some shapes occur only
once."""
log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Recorded = TypeVar("Recorded")


class Graph(Protocol):
    """A recorded sequence of operations."""

    def replay(self) -> None:
        """Start the same operations on the same memory."""
        ...


class GraphDevice(Protocol):
    """Records and replays graphs: a card (`CudaGraphs`), or the processor in tests."""

    def capture(self, parts: Sequence[Callable[[], None]]) -> Sequence[Graph]:
        """Run `parts` one after the other, then record each as a graph of its own.

        The parts may be run twice, and must only read and write tensors.

        Raises:
            RuntimeError: an operation cannot be recorded, such as waiting for the device, or there
                is not enough memory.
        """
        ...


class CudaGraphs:
    """Implements `GraphDevice` on a card.

    All graphs share one memory pool: they are replayed one after the other, and the results of one
    graph are copied out before the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, parts: Sequence[Callable[[], None]]) -> Sequence[Graph]:
        """See `GraphDevice`.

        A first run on the recording stream lets kernels compile and libraries allocate memory.
        """
        current = torch.cuda.current_stream(self._device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for part in parts:
                part()
        current.wait_stream(self.stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # Memory cannot be released while recording.
        collects = gc.isenabled()
        gc.disable()  # Freeing a tensor of another pool is not allowed while recording.
        try:
            return [self._recorded(part) for part in parts]
        finally:
            if collects:
                gc.enable()

    def _recorded(self, part: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                part()
            finally:
                graph.capture_end()
        return graph


class GraphCache(Generic[Key, Recorded]):
    """Recorded graphs by key; the least recently used one is evicted.

    Args:
        most: most graphs that exist at a time.

    Attributes:
        recorded: the graphs, least recently used first.
        refused: why graphs are no longer recorded; "" while they are.
    """

    def __init__(self, most: int, refused: str = "") -> None:
        self._most = most
        self.recorded: dict[Key, Recorded] = {}
        self._times: Counter[Key] = Counter()
        self.refused = refused

    def clear(self) -> None:
        """Drop all graphs, when the addresses that they contain are no longer valid."""
        self.recorded.clear()

    def used(self, key: Key) -> Recorded | None:
        """The graph recorded for `key`, or None."""
        if key not in self.recorded:
            return None
        graph = self.recorded[key] = self.recorded.pop(key)
        return graph

    def get(self, key: Key, record: Callable[[], Recorded]) -> Recorded | None:
        """The graph for `key`, recorded when it is requested for the second time."""
        if self.refused or key in self.recorded:
            return self.used(key)
        if self._times[key] < _EAGER_STEPS:
            self._times[key] += 1
            return None
        while len(self.recorded) >= self._most:
            del self.recorded[next(iter(self.recorded))]
        try:
            self.recorded[key] = record()
        except RuntimeError as error:
            self.refused = str(error)
            self.recorded.clear()
            log.warning("No CUDA graphs: recording %s failed: %s", key, error)
        return self.used(key)


def why_not(decoder: Decoder) -> str:
    """Why the decoder cannot be recorded, namely what waits for the device; "" if it can."""
    for module in decoder.modules():
        if isinstance(module, Experts) and not module.stays_on_device:
            return "the rows of each expert are counted on the processor"
    return ""
