"""The types that both sides of every process boundary speak: front ends, host and workers.

Standard library only, so that every room and every runner can import it. `backends.wire` carries
these types between processes. A stream of events for one `Request` is: `Started`, then `Progress`*
during prefill, then `Token`* and `ToolCallPart`* (with `n` over 1 a `ChoiceFinished` for each
choice), and exactly one `Finished` or `Failed`.

Here stands what a front end holds; what is asked stands in `backends.requests`, `messages` and
`sampling`, what is answered in `events`, which model and how in `models`, what is loaded in
`loaded`. All of it is imported from here, except by modules that the first paint of the terminal
app imports: to make all these classes takes time, so such a module names the one that it needs
(`tests/test_imports.py` holds this).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from hearth.backends.errors import ErrorInfo
from hearth.backends.events import (
    Channel,
    ChoiceFinished,
    Embeddings,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Prompt,
    Ranks,
    Scores,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)
from hearth.backends.loaded import (
    Capability,
    EngineStats,
    HostStats,
    ModelInfo,
    RequestState,
    RequestStats,
    WorkerStats,
)
from hearth.backends.messages import Message, Role, ToolCall
from hearth.backends.models import (
    BackendName,
    Dtype,
    HostLimits,
    KvPool,
    KvType,
    ModelSettings,
    ModelSpec,
)
from hearth.backends.requests import (
    Constraint,
    ConstraintKind,
    Pooling,
    Request,
    Tool,
    ToolChoice,
)
from hearth.backends.sampling import SamplingParams

__all__ = [
    "Backend",
    "BackendName",
    "Capability",
    "Channel",
    "ChoiceFinished",
    "Constraint",
    "ConstraintKind",
    "Dtype",
    "Embeddings",
    "EngineStats",
    "ErrorInfo",
    "Event",
    "Failed",
    "FinishReason",
    "Finished",
    "HostLimits",
    "HostStats",
    "KvPool",
    "KvType",
    "Message",
    "ModelInfo",
    "ModelSettings",
    "ModelSpec",
    "Pooling",
    "Progress",
    "Prompt",
    "Ranks",
    "Request",
    "RequestState",
    "RequestStats",
    "Role",
    "SamplingParams",
    "Scores",
    "Started",
    "Timings",
    "Token",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolChoice",
    "Usage",
    "WorkerStats",
]


class Backend(Protocol):
    """What a front end holds to run one model; `backends.client` implements it over the host."""

    async def info(self) -> ModelInfo:
        """Load the model if need be and say what it is."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; closing the iterator cancels it."""
        ...

    async def tokenize(
        self, text: str, *, special: bool = False, add_special: bool = False
    ) -> list[int]:
        """Token ids of `text`; with `special`, special tokens written in it are recognised; with
        `add_special`, between those that the model wants at the beginning and end of a text.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens written out."""
        ...

    async def render(self, request: Request) -> Prompt:
        """What the model would get for `request`; nothing is generated."""
        ...

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        """Log probability of each of `ids` (two or more) after those before it, and the `top`
        likeliest in its place. `session` as in `Request`.
        """
        ...

    async def embed(
        self,
        texts: Sequence[str | tuple[int, ...]],
        *,
        pooling: Pooling = "model",
        session: str = "",
        truncate: bool = False,
    ) -> Embeddings:
        """One vector a text (or its token ids); `pooling` "model" is what the model was trained
        with, else mean. With `truncate`, texts that exceed the context are cut at their end.
        """
        ...

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`, by a model that was trained to say so."""
        ...
