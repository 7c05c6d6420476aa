"""The events of a chat session, which front ends subscribe to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hearth.backends.contract.events import Channel
    from hearth.backends.errors import HearthError

TurnState = Literal["idle", "loading", "prefill", "generating", "stopping"]


@dataclass(frozen=True, slots=True)
class Changed:
    """The messages of the shown branch have changed and must be read again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The answer continues with `text`.

    Attributes:
        message: the id of the answer.
    """

    message: str
    text: str
    channel: Channel = "content"


@dataclass(frozen=True, slots=True)
class Moved:
    """The turn has changed its state, or advanced in the prompt."""

    state: TurnState
    done: int = 0
    """Number of prompt tokens already computed."""
    total: int = 0
    left_s: float | None = None
    """Seconds until the prompt is computed, at the speed so far; None while unknown."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer with the id `message` has ended; `error`: why it failed."""

    message: str
    error: HearthError | None = None


@dataclass(frozen=True, slots=True)
class Noticed:
    """A notice for the user."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"


SessionEvent = Changed | Piece | Moved | Ended | Noticed
Listener = Callable[[SessionEvent], None]
