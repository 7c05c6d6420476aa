"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        subject: what was looked at, a stable name.
        state: "ok"; "warning": works, but see `cure`; "fault": broken.
        text: what was found.
        cure: what to do about it; may be several lines of commands.
        data: the same for programs.
    """

    subject: str
    state: Literal["ok", "warning", "fault"]
    text: str
    cure: str = ""
    data: dict[str, Any] = field(default_factory=dict)
