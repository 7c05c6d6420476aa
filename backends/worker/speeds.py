"""Speed of both runners on this machine with each kind of model, measured by
`hearth doctor --measure`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from hearth.backends.machine.atomic_files import write_json
from hearth.backends.machine.cpu import cpu_name
from hearth.quant.gguf.file import GgufFile
from hearth.quant.versions import installed_version

FILE: Final = "backend-speeds.json"
_VERSION: Final = 1
_PROMPT_TOKENS: Final = 512
_GEN_TOKENS: Final = 128
_CLEARLY: Final = 1.05
"""Factor by which the native runner must be faster to be chosen, because single timings are noisy.
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one runner, in tokens per second of one session."""

    prefill: Annotated[float, msgspec.Meta(gt=0)]
    decode: Annotated[float, msgspec.Meta(gt=0)]

    @property
    def request_s(self) -> float:
        """Seconds for a request with 512 prompt tokens and 128 new tokens."""
        return _PROMPT_TOKENS / self.prefill + _GEN_TOKENS / self.decode


@dataclass(frozen=True, slots=True)
class Measured:
    """Speeds of both runners with one kind of model."""

    kind: str
    llamacpp: Speed
    native: Speed
    date: str
    """ISO 8601."""

    @property
    def is_native_faster(self) -> bool:
        return self.native.request_s * _CLEARLY < self.llamacpp.request_s

    @property
    def words(self) -> str:
        """The numbers in one line of text."""
        return (
            f"native {self.native.prefill:,.0f} prefill and {self.native.decode:,.1f} decode tok/s,"
            f" llama.cpp {self.llamacpp.prefill:,.0f} and {self.llamacpp.decode:,.1f}, on a small "
            f"random model of that kind, {self.date}"
        )


class Speeds:
    """Measurements made on this machine with the libraries that are installed now. A file that
    cannot be read counts as empty, because the figures can be measured again.

    Args:
        cache_dir: where the measurements are kept; must exist before `put` is called.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._file = cache_dir / FILE

    def all(self) -> list[Measured]:
        """All measurements, sorted by kind."""
        return sorted(self._load().values(), key=lambda found: found.kind)

    def of(self, kind: str) -> Measured | None:
        """The measurement for `kind` (see `kind_of`); None if there is none."""
        return self._load().get(kind)

    def put(self, measured: Measured) -> None:
        """Store `measured` in place of an earlier measurement of its kind. Raises `OSError`."""
        kinds = {**self._load(), measured.kind: measured}
        document = {
            "version": _VERSION,
            "machine": machine_key(),
            "kinds": [asdict(speed) for speed in kinds.values()],
        }
        write_json(self._file, document)

    def _load(self) -> dict[str, Measured]:
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            if document["version"] != _VERSION or document["machine"] != machine_key():
                return {}
            measurements = msgspec.convert(document["kinds"], list[Measured])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}
        return {measured.kind: measured for measured in measurements}


def kind_of(header: GgufFile) -> str:
    """The kind of a model, on which the speed of runners depends: the type of most elements of a
    GGUF's matrices, such as "Q4_K"; "" for mixtures of experts, which are not measured.
    """
    if header.value(f"{header.architecture}.expert_count", 0):
        return ""
    elements: Counter[str] = Counter()
    for tensor in header.all_tensors:
        if len(tensor.shape) > 1:
            elements[tensor.type.name] += tensor.elements
    return elements.most_common(1)[0][0] if elements else ""


def machine_key() -> Mapping[str, str]:
    """What measurements depend on: with another processor or library they are not valid."""
    return {
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        **{
            one: installed_version(one) or "" for one in ("torch", "llama-cpp-python", "hearth-llm")
        },
    }
