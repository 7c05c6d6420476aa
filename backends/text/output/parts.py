"""What parsers of output give."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.backends.contract.events import Channel


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class TextPart:
    """More of the answer, or of the reasoning before it."""

    text: str
    channel: Channel = "content"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call: the first one has `id` and `name`, and the `arguments` of all its
    pieces, joined, are a JSON text.
    """

    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Part = TextPart | CallPart
