"""Which models are loaded, and what they are doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RequestState = Literal["queued", "prefill", "decoding"]
Capability = Literal["chat", "tools", "thinking", "infill", "embed", "rank"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model, as measured or as read from its file; unknown values are 0 or empty."""

    name: str
    path: str
    backend: str
    backend_version: str
    architecture: str
    quantization: str = ""
    parameters: int = 0
    size_bytes: int = 0
    context: int = 0
    """Most tokens of a sequence, as loaded here."""
    trained_context: int = 0
    vocab_size: int = 0
    kv_bytes_per_token: int = 0
    """Bytes of keys and values, over all layers with full attention."""
    kv_type: str = ""
    threads: int = 0
    batch_threads: int = 0
    gpu_layers: int = 0
    load_s: float = 0.0
    has_chat_template: bool = False
    template_sha256: str = ""
    notices: tuple[str, ...] = ()
    """Notices for the user, e.g. that the library runs in a slower mode, and why."""
    capabilities: tuple[Capability, ...] = ()
    """What the model can do, derived from its template, vocabulary and runner."""
    max_sessions: int = 0
    max_batch_tokens: int = 0
    longest_token_bytes: int = 0
    """Most bytes of text that one token can stand for; 0 if unknown, because the tokenizer may
    drop or shorten text.
    """


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One request that is running or waiting in an engine; its choices are counted together."""

    id: int
    """The host's id for the request, unique within the worker that runs it; see `wire.EndRequest`.
    """
    session: str
    state: RequestState
    prompt_tokens: int = 0
    """0 while the request is not prepared."""
    computed_tokens: int = 0
    """Its tokens that are in the KV cache."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the KV cache and not computed."""
    generated_tokens: int = 0
    tok_per_s: float = 0.0
    """Measured from its first token; 0 before the second."""
    forgotten_tokens: int = 0
    """Tokens that were computed and, with attention sinks, have left the KV cache."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What the KV cache holds. A token counts once, however many sequences share it."""

    allocated_tokens: int = 0
    """Tokens for which memory is allocated now."""
    live_tokens: int = 0
    """Tokens held by running sequences."""
    kept_tokens: int = 0
    """Tokens that no running sequence holds, kept so that they can be reused as prefixes."""
    kept_prefixes: int = 0
    pinned_tokens: int = 0
    """Tokens of prefixes that must stay for a while (`Message.keep_s`), whether or not sequences
    hold them too.
    """
    offloaded_tokens: int = 0
    """Tokens of prefixes offloaded to host memory, where they do not slow down running sequences.
    """
    offloaded_prefixes: int = 0
    window_bytes: int = 0
    """Memory that layers with a sliding window take now."""
    state_bytes: int = 0
    """Memory that recurrent states of running sequences and kept prefixes take."""
    offloaded_bytes: int = 0
    """Memory that offloaded prefixes take."""
    disk_tokens: int = 0
    """Tokens of prefixes on disk, which are found again after a restart."""
    disk_bytes: int = 0
    """Disk space that these prefixes take."""
    disk_written_bytes: int = 0
    """Bytes written to disk since the model was loaded."""
    disk_read_tokens: int = 0
    """Tokens copied from disk into the KV cache since the model was loaded."""


@dataclass(frozen=True, slots=True)
class EngineStats(CacheStats):
    """What an engine is doing now, and what it has done since it was loaded."""

    running: int = 0
    waiting: int = 0
    pool_tokens: int = 0
    """Most tokens that the KV cache may hold."""
    kv_bytes_per_token: int = 0
    """Over all layers with full attention; the others are counted in `window_bytes`."""
    computed_tokens: int = 0
    """Prompt and generated tokens that went through the model."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the KV cache and did not go through the model."""
    generated_tokens: int = 0
    steps: int = 0
    rows: int = 0
    """Sequences that took part in a step, summed over all steps: `rows / steps` is the mean batch
    size.
    """
    preemptions: int = 0
    drafted_tokens: tuple[int, ...] = ()
    """Tokens drafted before a step, by their position in the draft."""
    accepted_tokens: tuple[int, ...] = ()
    """Drafted tokens that were accepted, by their position in the draft."""
    drafts_by: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(drafted, accepted) tokens by their source: "ngram", "chats" (n-grams of other texts), or the
    mode of a drafter."""
    declined_drafts: int = 0
    """Drafts that "auto" left out because they would not have paid off."""
    requests: tuple[RequestStats, ...] = ()
    """Running requests, then waiting ones; the first 256."""
    window_pool_bytes: int = 0
    """Most memory that layers with a sliding window may take."""
    beside_bytes: int = 0
    """Memory outside the pool: keys and values of background prefill, of texts to embed or rank and
    of drafters, and the texts that drafts are taken from."""

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a sequence generates in a step, on average: 1 without drafts, 0 before the
        first step.
        """
        steps = self.generated_tokens - sum(self.accepted_tokens)
        return self.generated_tokens / steps if steps > 0 else 0.0

    @property
    def allocated_bytes(self) -> int:
        """Memory that keys and values in the pool take now."""
        return self.allocated_tokens * self.kv_bytes_per_token + self.window_bytes

    @property
    def taken_bytes(self) -> int:
        """Memory that keys, values and states take now, wherever they are stored."""
        held = self.allocated_bytes + self.state_bytes
        return held + self.offloaded_bytes + self.beside_bytes

    @property
    def pool_bytes(self) -> int:
        """Most memory that keys and values in the pool may take."""
        return self.pool_tokens * self.kv_bytes_per_token + self.window_pool_bytes


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One loaded model, as `hearth ps` shows it."""

    name: str
    path: str
    pid: int = 0
    """0 while the model is not loaded because other models must be unloaded first."""
    running: int = 0
    waiting: int = 0
    restarts: int = 0
    idle_s: float = 0.0
    info: ModelInfo | None = None
    engine: EngineStats | None = None
    """None while the model is loading, or if the worker does not answer in time."""
    keep_alive_s: float | None = None
    """The model is unloaded after this many idle seconds; negative: never; None: not reported."""
    stalled_s: float = 0.0
    """Seconds without progress while calls wait for the worker."""


@dataclass(frozen=True, slots=True)
class HostStats:
    """The host process and what it runs."""

    pid: int
    version: str
    started_at: float
    """Unix time."""
    clients: int
    workers: tuple[WorkerStats, ...] = ()
