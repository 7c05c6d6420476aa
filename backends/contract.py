"""The types that both sides of every process boundary speak: front ends, host and workers.

Standard library only, so that every room and every runner can import it. `backends.wire` carries
these types between processes. A stream of events for one `Request` is: `Started`, then `Progress`*
during prefill, then `Token`* and `ToolCallPart`* (with `n` over 1 a `ChoiceFinished` for each
choice), and exactly one `Finished` or `Failed`. What is asked stands here, what is answered in
`backends.events`, what models are in `backends.models`; all of it is imported from here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hearth.backends.events import (
    Channel,
    ChoiceFinished,
    Embeddings,
    ErrorInfo,
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
from hearth.backends.models import (
    BackendName,
    Capability,
    Dtype,
    EngineStats,
    HostLimits,
    HostStats,
    KvPool,
    KvType,
    ModelInfo,
    ModelSettings,
    ModelSpec,
    RequestState,
    RequestStats,
    WorkerStats,
)

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

Role = Literal["system", "user", "assistant", "tool"]
Pooling = Literal["model", "mean", "last", "cls"]
ToolChoice = Literal["auto", "none", "required"]
ConstraintKind = Literal["json", "json_schema", "regex", "choice"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    id: str
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str = ""
    reasoning: str = ""
    """What the model thought before it answered; only of the assistant."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only of the assistant."""
    tool_call_id: str = ""
    """Which call a message of the role "tool" answers."""
    name: str = ""
    """Who speaks, or which tool answers, where the template can say so."""
    keep_s: float = 0.0
    """Keep what is computed for the prompt up to the end of this message, so many seconds from its
    last use, in spite of others who need room; 0: as long as there is room.
    """


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to be called."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments; empty: none are declared."""
    strict: bool = False
    """Arguments must follow the schema: what would not is never drawn."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer must look like, from its first character (after the reasoning, where a model
    thinks) to its last.
    """

    kind: ConstraintKind
    source: str = ""
    """json_schema: the schema as JSON. regex: the pattern. choice: a JSON list of texts."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `backends.engine.validate` checks every field before any model
    work.

    The order is: logit bias, repetition, frequency and presence penalties, DRY, then top-k,
    typical-p, top-p, min-p, XTC, temperature, draw. A value that switches a step off is given for
    each.
    """

    temperature: float = 0.7
    """0 is greedy (arg max, ties to the lowest id); up to 10."""
    top_k: int = 40
    """Keep the k likeliest; 0 is off."""
    top_p: float = 0.95
    """Keep the smallest set whose probability reaches p, in (0, 1]; 1 is off."""
    min_p: float = 0.05
    """Drop tokens below this share of the likeliest one, in [0, 1]; 0 is off."""
    typical_p: float = 1.0
    """Locally typical sampling (arXiv 2202.00666), in (0, 1]; 1 is off."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in the window (arXiv
    1909.05858); 1 is off.
    """
    repetition_window: int = 64
    """How many last tokens, prompt included, the three penalties look at; -1 all, 0 none."""
    frequency_penalty: float = 0.0
    """Subtracted once for each occurrence in the window, in [-2, 2]."""
    presence_penalty: float = 0.0
    """Subtracted once for each token that occurs in the window, in [-2, 2]."""
    dry_multiplier: float = 0.0
    """DRY: penalty for a token that would continue a repeated run; 0 is off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = -1
    """How many last tokens DRY searches; -1 all, 0 none."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    """Exclude Top Choices with this chance at each position; 0 is off."""
    xtc_threshold: float = 0.1
    """XTC removes all but the least likely of the tokens at or above this probability; over 0.5 it
    never acts.
    """
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to logits by token id, each in [-100, 100]; -100 bans a token."""
    seed: int | None = None
    """In [0, 2**64). The draw at a position is a function of (seed, position) alone. None: a fresh
    seed.
    """
    logprobs: int | None = None
    """None: none. n in [0, 20]: log probability of each token drawn and of the n likeliest."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asked: exactly one of `messages`, `text` and `token_ids`.

    `messages` go through the chat template; `text` is completed as it stands (special tokens in it
    are plain text); `token_ids` are used unchanged.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """At most this many new tokens; None: until the model ends or the context is full."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these; they are never part of the text."""
    n: int = 1
    """Answers to the same prompt, in [1, 16]; the prompt is computed once. Choice 0 draws with
    `sampling.seed`, the others with seeds made from it.
    """
    priority: int = 0
    """In [-100, 100]. Higher goes first among those that wait, and may put lower ones aside."""
    session: str = ""
    """Whom the request is for: sessions take turns where requests must wait. Empty: the front end
    that sent it.
    """
    constraint: Constraint | None = None
    tools: tuple[Tool, ...] = ()
    """Only with `messages`."""
    tool_choice: ToolChoice = "auto"
    """none: the tools are not shown to the model. required: the answer is a call of one."""
    forced_tool: str = ""
    """With `tool_choice` "required": the tool that must be called."""
    parallel_tool_calls: bool = True
    """False: one call at most."""
    template_values: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as {"enable_thinking": False}; JSON values."""
    continue_last: bool = False
    """The last message is the assistant's, and the answer goes on from its end."""
    suffix: str | None = None
    """With `text`: what comes after the text to be found (infill)."""
    reuse_prefix: bool = True
    """False: compute the whole prompt, also what is known from earlier ones."""


class Backend(Protocol):
    """What a front end holds to run one model; `backends.client` implements it over the host."""

    async def info(self) -> ModelInfo:
        """Load the model if need be and say what it is."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; closing the iterator cancels it."""
        ...

    async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`; with `special`, special tokens written in it are recognised."""
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
    ) -> Embeddings:
        """One vector a text (or its token ids); `pooling` "model" is what the model was trained
        with, else mean.
        """
        ...

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`, by a model that was trained to say so."""
        ...
