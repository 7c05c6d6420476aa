"""What is loaded now, and what it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RequestState = Literal["queued", "prefill", "decoding"]
Capability = Literal["chat", "tools", "thinking", "infill", "embed", "rank"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model, as measured or read from it; what is not known is 0 or empty."""

    name: str
    path: str
    backend: str
    backend_version: str
    architecture: str
    quantization: str = ""
    parameters: int = 0
    size_bytes: int = 0
    context: int = 0
    """Tokens a sequence may hold here."""
    trained_context: int = 0
    vocab_size: int = 0
    kv_bytes_per_token: int = 0
    """Of keys and values, in all layers that see everything."""
    kv_type: str = ""
    threads: int = 0
    batch_threads: int = 0
    gpu_layers: int = 0
    load_s: float = 0.0
    has_chat_template: bool = False
    template_sha256: str = ""
    notices: tuple[str, ...] = ()
    """Things the user should know, e.g. that the library runs in a slower mode, and why."""
    capabilities: tuple[Capability, ...] = ()
    """What it can do, by its template, its vocabulary and its runner."""
    max_sessions: int = 0
    max_batch_tokens: int = 0
    longest_token_bytes: int = 0
    """Most bytes of text that one token stands for; 0: not known, because the tokenizer may leave
    out or shorten text.
    """


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One request that an engine runs, or that waits for it; several choices count together."""

    id: int
    """What the host calls it in the worker that runs it; see `wire.EndRequest`."""
    session: str
    state: RequestState
    prompt_tokens: int = 0
    """0: it is not prepared yet."""
    computed_tokens: int = 0
    """Tokens of it that are in the key-value memory."""
    cached_tokens: int = 0
    """Prompt tokens that were found and not computed."""
    generated_tokens: int = 0
    tok_per_s: float = 0.0
    """Since its first token; 0 before the second."""
    forgotten_tokens: int = 0
    """Computed, and not in the key-value memory any more, with attention sinks."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What the key-value memory holds; tokens count once, however many sequences share them."""

    allocated_tokens: int = 0
    """What there is memory for now."""
    live_tokens: int = 0
    """Held by running sequences."""
    kept_tokens: int = 0
    """Held by nobody who runs, to be found again as prefixes."""
    kept_prefixes: int = 0
    pinned_tokens: int = 0
    """Held by prefixes that must stay for a while (`Message.keep_s`), whether or not others hold
    them.
    """
    offloaded_tokens: int = 0
    """Of prefixes that are kept in plain memory, where they do not slow down those who run."""
    offloaded_prefixes: int = 0
    window_bytes: int = 0
    """What layers that see a window only take of memory now."""
    state_bytes: int = 0
    """What recurrent states take, of running sequences and kept prefixes."""
    offloaded_bytes: int = 0
    """What prefixes in plain memory take."""
    disk_tokens: int = 0
    """Of prefixes on disk, which a restart finds again."""
    disk_bytes: int = 0
    """What these take on disk."""
    disk_written_bytes: int = 0
    """Written to disk since the model was loaded."""
    disk_read_tokens: int = 0
    """Copied from disk into the key-value memory since the model was loaded."""


@dataclass(frozen=True, slots=True)
class EngineStats(CacheStats):
    """What an engine does now, and has done since it was loaded."""

    running: int = 0
    waiting: int = 0
    pool_tokens: int = 0
    """Most tokens that the key-value memory may hold."""
    kv_bytes_per_token: int = 0
    """In all layers that see everything; others are in `window_bytes`."""
    computed_tokens: int = 0
    """Prompt and generated tokens that went through the model."""
    cached_tokens: int = 0
    """Prompt tokens that did not have to, because they were found."""
    generated_tokens: int = 0
    steps: int = 0
    rows: int = 0
    """Sequences that had a part in a step, over all steps: `rows / steps` ran together."""
    preemptions: int = 0
    drafted_tokens: tuple[int, ...] = ()
    """Guessed before a step, by their position in the draft,"""
    accepted_tokens: tuple[int, ...] = ()
    """and how many of them were right."""
    drafts_by: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The same sums by what made them: "ngram", "chats" (n-grams of other texts), or the mode of a
    drafter."""
    declined_drafts: int = 0
    """That "auto" did without, because they would not have paid."""
    requests: tuple[RequestStats, ...] = ()
    """Those that run, then those that wait; the first 256."""
    window_pool_bytes: int = 0
    """What layers that see a window only take at most."""
    beside_bytes: int = 0
    """What other contexts have for keys and values: of a prompt that is computed in the background,
    and of texts to embed or rank."""

    @property
    def tokens_a_step(self) -> float:
        """That a sequence generated in a step, on average; 1 without drafts, 0 before the first."""
        steps = self.generated_tokens - sum(self.accepted_tokens)
        return self.generated_tokens / steps if steps > 0 else 0.0

    @property
    def allocated_bytes(self) -> int:
        """What keys and values take of memory now, in the pool."""
        return self.allocated_tokens * self.kv_bytes_per_token + self.window_bytes

    @property
    def taken_bytes(self) -> int:
        """What an engine takes of memory now for keys, values and states, wherever they are."""
        held = self.allocated_bytes + self.state_bytes
        return held + self.offloaded_bytes + self.beside_bytes

    @property
    def pool_bytes(self) -> int:
        """What they may take."""
        return self.pool_tokens * self.kv_bytes_per_token + self.window_pool_bytes


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One loaded model, as `hearth ps` shows it."""

    name: str
    path: str
    pid: int = 0
    """0: it is not loaded yet, because others must make way for it."""
    running: int = 0
    waiting: int = 0
    restarts: int = 0
    idle_s: float = 0.0
    info: ModelInfo | None = None
    engine: EngineStats | None = None
    """None while it is loading, or where it does not answer at once."""
    keep_alive_s: float | None = None
    """Unloaded after so many idle seconds; negative: never; None: not said."""
    stalled_s: float = 0.0
    """Seconds without progress while calls wait for it."""


@dataclass(frozen=True, slots=True)
class HostStats:
    """The host process and what it runs."""

    pid: int
    version: str
    started_at: float
    """Unix time."""
    clients: int
    workers: tuple[WorkerStats, ...] = ()
