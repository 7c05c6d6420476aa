"""What a model gets for a request."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.backends.text.output.parts import OutputFormat

Pins = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """What a model gets for a request."""

    ids: list[int]
    text: str | None
    """As a person sees it; None: what `ids` say."""
    notices: tuple[str, ...] = ()
    pins: Pins = ()
    """Keep the first so many tokens so many seconds, longest part last."""
    format: OutputFormat | None = None
    """How the model writes its answer; None: all of it is the answer."""
    before_answer: str = ""
    """`text` without what the last message says, where the answer goes on from that: where the
    answer as a whole begins."""
