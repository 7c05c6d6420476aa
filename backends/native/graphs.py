"""CUDA graphs: operations that are recorded once, and started by one call afterwards."""

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
"""That a shape is computed without a graph before one is recorded for it: steps of some shapes
come once, between others."""
log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Recorded = TypeVar("Recorded")


class Graph(Protocol):
    """What was recorded."""

    def replay(self) -> None:
        """Start it: the same operations on the same memory."""
        ...


class GraphDevice(Protocol):
    """What records and replays: a card (`CudaGraphs`), or in tests the processor."""

    def capture(self, parts: Sequence[Callable[[], None]]) -> Sequence[Graph]:
        """Run each of `parts`, one after the other, then record it as a graph of its own. They may
        be run twice, and read and write tensors only.

        Raises:
            RuntimeError: something in them cannot be recorded, such as waiting for the device; or
                there is no memory for it.
        """
        ...


class CudaGraphs:
    """Implements `GraphDevice` on a card. All graphs share one pool of memory: they are replayed
    one after the other, and what one leaves in it is copied out before the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, parts: Sequence[Callable[[], None]]) -> Sequence[Graph]:
        """See `GraphDevice`. Kernels are compiled and libraries take their memory in a first run,
        on the stream that is recorded.
        """
        current = torch.cuda.current_stream(self._device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for part in parts:
                part()
        current.wait_stream(self.stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # No memory can be given back while recording.
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
    """What was recorded, by what it is for; the one that was not used for longest makes way.

    Args:
        most: that exist at a time.

    Attributes:
        recorded: what there is; the one that was used last is the last.
        refused: why nothing is recorded any more; "" as long as it is.
    """

    def __init__(self, most: int, refused: str = "") -> None:
        self._most = most
        self.recorded: dict[Key, Recorded] = {}
        self._times: Counter[Key] = Counter()
        self.refused = refused

    def clear(self) -> None:
        """Drop all of them: graphs know addresses."""
        self.recorded.clear()

    def used(self, key: Key) -> Recorded | None:
        """What was recorded for `key`, if it was."""
        if key not in self.recorded:
            return None
        found = self.recorded[key] = self.recorded.pop(key)
        return found

    def get(self, key: Key, record: Callable[[], Recorded]) -> Recorded | None:
        """The same, recorded when it is asked for the second time."""
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
    """What of a decoder waits for the device within a step; "" if nothing does."""
    for module in decoder.modules():
        if isinstance(module, Experts) and not module.stays_on_device:
            return "the rows of each expert are counted on the processor"
    return ""
