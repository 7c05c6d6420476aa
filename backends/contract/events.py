"""Answers to calls: the events of a stream, and answers that are sent as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hearth.backends.errors import ErrorInfo

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
Channel = Literal["content", "reasoning"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a token under the model's own distribution (before temperature
    and truncation).
    """

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    """(id, text, logprob) of the likeliest tokens, best first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were found in the KV cache and not computed."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Completion tokens of the reasoning before the answer."""
    kept_tokens: int = 0
    """Prompt tokens that `Message.keep_s` asks to keep and that were not found in the KV cache."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Times measured in the worker, in seconds and tokens per second; 0 if not measured."""

    queued_s: float = 0.0
    ttft_s: float = 0.0
    """From the arrival of the request in the worker to its first token."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill_tok_per_s: float = 0.0
    decode_tok_per_s: float = 0.0
    drafted_tokens: tuple[int, ...] = ()
    """Drafted tokens, by their position in the draft."""
    accepted_tokens: tuple[int, ...] = ()
    """Drafted tokens that were accepted, by their position in the draft."""


if TYPE_CHECKING:
    from msgspec import Struct
else:
    try:
        from msgspec import Struct
    except ModuleNotFoundError:  # The native runner alone (docs/cuda.md): no events cross pipes.

        class Struct:
            """Replacement for msgspec's `Struct`: subclasses become dataclasses."""

            def __init_subclass__(cls, **_options: Any) -> None:
                dataclass(cls)


class _StreamPart(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An event after which its stream continues.

    One is made for each token in every process that the token passes, so it is a msgspec struct,
    which is created, encoded and decoded without Python code.
    """


class Started(_StreamPart):
    """The prompt is rendered and its tokens counted, and the request is running."""

    prompt_tokens: int
    cached_tokens: int = 0
    notices: tuple[str, ...] = ()


class Progress(_StreamPart):
    """Prefill: `done` of `total` prompt tokens are computed."""

    done: int
    total: int


class Token(_StreamPart):
    """A piece of text. `ids` are the tokens since the last event. The text of a token that may
    begin a stop string or a tool call is sent later.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    """Number of the choice, if `Request.n` is over 1."""
    channel: Channel = "content"


class ToolCallPart(_StreamPart):
    """A piece of a tool call. The first piece has `id` and `name`; the `arguments` of all pieces,
    joined, are a JSON text.
    """

    position: int
    """Number of the call in the answer, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    ids: tuple[int, ...] = ()
    """The tokens since the last event."""
    index: int = 0
    """Number of the choice, if `Request.n` is over 1."""


Part = Token | ToolCallPart
"""A part of an answer; output parsers return parts without token ids and choice."""


class ChoiceFinished(_StreamPart):
    """One of several choices is complete; sent only if `Request.n` is over 1."""

    index: int
    reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a successful stream. With several choices, `reason` is that of the first choice,
    and `usage` counts the tokens of all.
    """

    reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop: str | None = None
    """The stop string that ended the answer; None if none did."""
    notices: tuple[str, ...] = ()
    """Notices about the answer, e.g. that a tool call in it could not be parsed and is returned as
    text.
    """


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a failed stream; text sent before it remains valid."""

    error: ErrorInfo


Event = Started | Progress | Token | ToolCallPart | ChoiceFinished | Finished | Failed


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that a model gets for a request."""

    text: str
    ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of given tokens: `logprobs[i]` is the natural-log probability of token
    i + 1 given the tokens before it, so there is one fewer than there are tokens.
    """

    logprobs: tuple[float, ...]
    tokens: tuple[TokenLogprob, ...] = ()
    """The same tokens with their texts and the likeliest alternatives, if `top` was given."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, of length 1 (L2)."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """How well each text answers the query: higher is better, on a scale of the model's own."""

    scores: tuple[float, ...]
    prompt_tokens: int
