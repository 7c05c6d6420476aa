"""The user interfaces, and the Python API: `from hearth.app import LLM, SamplingParams`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.app.llm import (
        LLM,
        AsyncLLM,
        AsyncStream,
        Completion,
        Constraint,
        HearthError,
        Message,
        SamplingParams,
        Stream,
        Tool,
    )
else:

    def __getattr__(name: str) -> object:
        """Import the names of the Python API on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hearth.app import llm

        return getattr(llm, name)


__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncStream",
    "Completion",
    "Constraint",
    "HearthError",
    "Message",
    "SamplingParams",
    "Stream",
    "Tool",
]
