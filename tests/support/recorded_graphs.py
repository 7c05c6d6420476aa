"""Graphs on a processor, with the hazards of CUDA graphs: they use the memory that existed when
they were recorded, and do not run the code that allocated it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

WAITS: Final = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique")
"""Operators that need a value from the device, so that no graph can record them."""


class RecordedGraph:
    """Operators with the same tensors that they were called with."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.replays = 0

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any, found: Any) -> None:
        self._calls.append((function, args, kwargs, found))

    def __len__(self) -> int:
        return len(self._calls)

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, before in self._calls:
            after = tree_leaves(function(*args, **kwargs))
            given = {_memory(one) for one in tree_leaves((args, kwargs)) if _is_tensor(one)}
            for target, new in zip(tree_leaves(before), after, strict=True):
                if _is_tensor(target) and _memory(target) not in given:
                    target.copy_(new)


class Recorder(TorchDispatchMode):
    """Implements `hearth.backends.native.graphs.GraphDevice`."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[RecordedGraph] = []
        """All recorded graphs, including those that were dropped."""
        self.fails = ""
        """The error of the next recordings."""
        self._graph: RecordedGraph | None = None

    def capture(self, parts: Sequence[Callable[[], None]]) -> list[RecordedGraph]:
        if self.fails:
            raise RuntimeError(self.fails)
        for part in parts:
            part()
        return [self._recorded(part) for part in parts]

    def _recorded(self, step: Callable[[], None]) -> RecordedGraph:
        self._graph = RecordedGraph()
        try:
            with self:
                step()
            self.graphs.append(self._graph)
            return self._graph
        finally:
            self._graph = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        found = func(*args, **(kwargs or {}))
        assert self._graph is not None
        self._graph.add(func, args, kwargs or {}, found)
        return found

    def kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which starts Triton kernels, to be recorded as one operator."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._graph is None:
                return function(*args, **kwargs)
            with _disable_current_modes():
                found = function(*args, **kwargs)
            self._graph.add(function, args, kwargs, found)
            return found

        return call


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
