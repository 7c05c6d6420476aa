"""The types that both sides of every process boundary speak: front ends, host and workers.

Standard library only, so that every room and every runner can import it. `backends.wire` carries
these types between processes. A stream of events for one `Request` is: `Started`, then `Progress`*
during prefill, then `Token`* (with `n` over 1 a `ChoiceFinished` for each choice), and exactly one
`Finished` or `Failed`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]
KvType = Literal["f32", "f16", "q8_0", "q4_0"]
KvPool = Literal["grow", "static"]
Pooling = Literal["model", "mean", "last", "cls"]
BackendName = Literal["llamacpp"]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str


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


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is loaded. None means: decided on this machine, and reported in `ModelInfo`."""

    context: int | None = None
    """Context length in tokens; None: what the model was trained for or what fits, whichever is
    less.
    """
    kv_type: KvType = "f16"
    gpu_layers: int | None = None
    """Layers on Metal or CUDA; None: all where the library has a GPU, else none."""
    threads: int | None = None
    batch_threads: int | None = None
    max_batch_tokens: int = 512
    """Most tokens of one step, prefill and decode of all sessions together."""
    target_itl_ms: float = 50.0
    """While others stream, prefill is cut so that a step takes about this long, or twice a step
    without prefill where that is longer.
    """
    flash_attention: bool | None = None
    """None: the library decides. False with kv_type "f32" is the exact mode of the tests."""
    extra_buffers: bool | None = None
    """llama.cpp's repacked and AMX weights; None: on where the self-test passed."""
    max_sessions: int = 8
    """Sequences that run at the same time."""
    max_waiting: int = 64
    """Requests that may wait beside those that run; more are refused as `Busy`."""
    kv_budget_bytes: int | None = None
    """Most memory for keys and values of all sessions and kept prefixes; None: what
    `memory_fraction` leaves, and no more than every session can use.
    """
    kv_pool: KvPool = "grow"
    """grow: start small and double when full. static: take the whole budget at load."""
    memory_fraction: float = 0.9
    """Share of the free memory that weights, keys and values may take, in (0, 1]."""
    chat_template: str | None = None
    """Jinja source to use in place of the model's own."""
    keep_alive_s: float = 300.0
    """Unload after so many idle seconds; negative: never."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model a request is for: a file, a backend, and how to load it."""

    path: str
    name: str = ""
    """What people call it; the file's stem if empty."""
    backend: BackendName = "llamacpp"
    settings: ModelSettings = ModelSettings()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model, as measured or read from it; nothing here is a guess."""

    name: str
    path: str
    backend: str
    backend_version: str
    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    context: int
    """Tokens a sequence may hold here."""
    trained_context: int
    vocab_size: int
    kv_bytes_per_token: int
    kv_type: str
    threads: int
    batch_threads: int
    gpu_layers: int
    load_s: float
    has_chat_template: bool
    template_sha256: str
    notices: tuple[str, ...] = ()
    """Things the user should know, e.g. that the library runs in a slower mode, and why."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A `HearthError` on its way between processes (`backends.errors.from_info` makes it one
    again).
    """

    code: str
    message: str
    hint: str = ""
    data: dict[str, Any] = field(default_factory=dict)


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
    completion_tokens: int = 0


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


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is rendered and counted, and the request runs."""

    prompt_tokens: int
    cached_tokens: int = 0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill: `done` of `total` prompt tokens are computed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """More text. `ids` are the tokens since the last event; text of a token that may begin a stop
    string comes later.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    """Which choice, with `Request.n` over 1."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
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


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a stream that did not; text that came before it stands."""

    error: ErrorInfo


Event = Started | Progress | Token | ChoiceFinished | Finished | Failed


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model thinks of given tokens: `logprobs[i]` is the natural-log probability of token
    i + 1 after the tokens before it, so there is one fewer than there are tokens.
    """

    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, of length 1 (L2)."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine does now, and has done since it was loaded. Tokens of memory count once,
    however many sequences share them.
    """

    running: int
    waiting: int
    pool_tokens: int
    """Most tokens that the key-value memory may hold."""
    allocated_tokens: int
    """What it has memory for now."""
    live_tokens: int
    """Held by running sequences."""
    kept_tokens: int
    """Held by nobody who runs, to be found again as prefixes."""
    kept_prefixes: int
    kv_bytes_per_token: int
    computed_tokens: int = 0
    """Prompt and generated tokens that went through the model."""
    cached_tokens: int = 0
    """Prompt tokens that did not have to, because they were found."""
    generated_tokens: int = 0
    steps: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One loaded model, as `hearth ps` shows it."""

    name: str
    path: str
    pid: int
    running: int
    waiting: int
    restarts: int
    idle_s: float
    info: ModelInfo | None = None
    engine: EngineStats | None = None
    """None while it is loading, or where it does not answer at once."""
    keep_alive_s: float | None = None
    """Unloaded after so many idle seconds; negative: never; None: not said."""


@dataclass(frozen=True, slots=True)
class HostStats:
    """The host process and what it runs."""

    pid: int
    version: str
    started_at: float
    """Unix time."""
    clients: int
    workers: tuple[WorkerStats, ...] = ()


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

    async def render(self, messages: Sequence[Message]) -> str:
        """The prompt that the chat template makes of `messages`."""
        ...

    async def score(self, ids: Sequence[int]) -> Scores:
        """Log probability of each of `ids` (two or more) after those before it."""
        ...

    async def embed(self, texts: Sequence[str], *, pooling: Pooling = "model") -> Embeddings:
        """One vector a text; `pooling` "model" is what the model was trained with, else mean."""
        ...
