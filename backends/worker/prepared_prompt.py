"""What a model gets for a request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hearth.backends.text.output.parts import OutputFormat

Pins = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """What a model gets for a request."""

    ids: list[int]
    text: str | None
    """As a person sees it; None: decode `ids`."""
    notices: tuple[str, ...] = ()
    pins: Pins = ()
    """Keep the first so many tokens so many seconds, longest part last."""
    format: OutputFormat | None = None
    """How the model writes its answer; None: all of it is the answer."""
    before_answer: str = ""
    """`text` without what the last message says, where the answer goes on from that: where the
    answer as a whole begins."""

    def last(self, most: int) -> PreparedPrompt:
        """The same prompt with only its last `most` tokens; no first part of it can be kept."""
        if len(self.ids) <= most:
            return self
        notice = f"The prompt was cut from {len(self.ids)} to its last {most} tokens."
        return replace(
            self, ids=self.ids[-most:], text=None, notices=(*self.notices, notice), pins=()
        )
