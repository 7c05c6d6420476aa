"""What planning needs of a GGUF header; `hearth.quant.gguf.file.GgufFile` has it."""

from __future__ import annotations

from typing import Any, Protocol


class GgufFacts(Protocol):
    """What is read from a GGUF header (`hearth.quant.gguf.preflight`)."""

    @property
    def architecture(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    def value(self, key: str, default: Any = None) -> Any: ...
    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int: ...
