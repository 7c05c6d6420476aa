"""What is said in answer to a call: the events of a stream, and the answers that come whole."""

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
    """(id, text, logprob) of the likeliest, best first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Counted tokens of one request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were found and not computed."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion's: those before the answer."""
    kept_tokens: int = 0
    """Prompt tokens that `Message.keep_s` asks to keep, and that were not found."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Measured in the worker, in seconds and tokens per second; 0 where nothing was measured."""

    queued_s: float = 0.0
    ttft_s: float = 0.0
    """Arrival of the request in the worker to its first token."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill_tok_per_s: float = 0.0
    decode_tok_per_s: float = 0.0
    drafted_tokens: tuple[int, ...] = ()
    """Tokens that were guessed, by their position in the draft,"""
    accepted_tokens: tuple[int, ...] = ()
    """and how many of them were right."""


if TYPE_CHECKING:
    from msgspec import Struct
else:
    try:
        from msgspec import Struct
    except ModuleNotFoundError:  # The native runner alone (docs/cuda.md): events cross no pipe.

        class Struct:
            """In place of msgspec's: subclasses are dataclasses."""

            def __init_subclass__(cls, **_options: Any) -> None:
                dataclass(cls)


class _StreamPart(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An event after which its stream goes on. One is made for each token in every process that it
    passes: a struct of msgspec is made, encoded and decoded without Python code.
    """


class Started(_StreamPart):
    """The prompt is rendered and counted, and the request runs."""

    prompt_tokens: int
    cached_tokens: int = 0
    notices: tuple[str, ...] = ()


class Progress(_StreamPart):
    """Prefill: `done` of `total` prompt tokens are computed."""

    done: int
    total: int


class Token(_StreamPart):
    """More text. `ids` are the tokens since the last event; text of a token that may begin a stop
    string, or a tool call, comes later.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    """Which choice, with `Request.n` over 1."""
    channel: Channel = "content"


class ToolCallPart(_StreamPart):
    """A piece of a tool call: the first one has `id` and `name`, and the `arguments` of all its
    pieces, joined, are a JSON text.
    """

    position: int
    """Which call of the answer, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    ids: tuple[int, ...] = ()
    """The tokens since the last event."""
    index: int = 0
    """Which choice, with `Request.n` over 1."""


Part = Token | ToolCallPart
"""Of an answer; parsers of output give them without tokens and choice."""


class ChoiceFinished(_StreamPart):
    """One of several choices is complete; sent only where `Request.n` is over 1."""

    index: int
    reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream that went well. With several choices: the reason of the first, and the
    tokens of all.
    """

    reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop: str | None = None
    """The stop string that ended it, if one did."""
    notices: tuple[str, ...] = ()
    """What the reader should know of the answer, e.g. that a tool call in it could not be read and
    was given as text.
    """


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a stream that did not; text that came before it stands."""

    error: ErrorInfo


Event = Started | Progress | Token | ToolCallPart | ChoiceFinished | Finished | Failed


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model gets for a request."""

    text: str
    ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model thinks of given tokens: `logprobs[i]` is the natural-log probability of token
    i + 1 after the tokens before it, so there is one fewer than there are tokens.
    """

    logprobs: tuple[float, ...]
    tokens: tuple[TokenLogprob, ...] = ()
    """The same tokens with their texts and the likeliest others, where `top` was asked for."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, of length 1 (L2)."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """How well each text answers the query: higher is better, the scale is the model's own."""

    scores: tuple[float, ...]
    prompt_tokens: int
