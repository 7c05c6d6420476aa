"""Metrics in Prometheus' text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hearth.app.server.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """One metric with all its samples.

    Args:
        name: with its unit; a counter's ends in "_total".
        help: one line on what is measured.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)
    """(suffix of the name, labels, value)."""

    def add(self, value: float | None, **labels: str) -> None:
        """Add one sample; None: nothing was measured, and none is added."""
        if value is not None:
            self.samples.append(("", labels, value))

    def add_histogram(self, histogram: Histogram, **labels: str) -> None:
        """Add the samples of `histogram`, in seconds."""
        for edge, count in histogram.cumulative():
            self.samples.append(("_bucket", {**labels, "le": repr(edge)}, count))
        self.samples.append(("_bucket", {**labels, "le": "+Inf"}, histogram.count))
        self.samples.append(("_sum", labels, histogram.sum_s))
        self.samples.append(("_count", labels, histogram.count))


def exposition(families: Iterable[Family]) -> bytes:
    """The text of all `families` that have samples."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            lines.append(f"{family.name}{suffix}{_braced(labels)} {value!r}")
    # Labels may contain file names that are not valid Unicode.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _braced(labels: Labels) -> str:
    parts = [f'{name}="{value.translate(_LABEL)}"' for name, value in labels.items()]
    return f"{{{','.join(parts)}}}" if parts else ""
