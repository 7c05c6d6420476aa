"""What a chat session tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hearth.backends.contract import Channel, ToolCall

TurnState = Literal["idle", "loading", "prefill", "generating", "stopping"]


@dataclass(frozen=True, slots=True)
class Changed:
    """The messages of the shown branch are others than before, or one of them says something else;
    read them anew.
    """


@dataclass(frozen=True, slots=True)
class Piece:
    """The answer under way goes on."""

    message: str
    """Its id."""
    text: str
    channel: Channel = "content"


@dataclass(frozen=True, slots=True)
class Calls:
    """The tool calls of the answer under way, as far as they are written."""

    message: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The turn is in another state, or further in the prompt."""

    state: TurnState
    done: int = 0
    """Prompt tokens that are computed."""
    total: int = 0
    left_s: float | None = None
    """Seconds until the prompt is computed, by the speed so far; None while that is unknown."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer with this id is over, well or not."""

    message: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something that the user should know."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"


Happening = Changed | Piece | Calls | Moved | Ended | Noticed
Listener = Callable[[Happening], None]
