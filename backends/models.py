"""What a model is, how it is loaded, and what is loaded now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KvType = Literal["f32", "f16", "q8_0", "q4_0"]
KvPool = Literal["grow", "static"]
Dtype = Literal["f32", "f16", "bf16"]
BackendName = Literal["auto", "llamacpp", "native", "remote"]
"""What runs a model. "auto": what suits the file and the machine (`hearth.backends.choice`)."""
RequestState = Literal["queued", "prefill", "decoding"]
Capability = Literal["chat", "tools", "thinking", "infill", "embed", "rank"]


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
    dtype: Dtype | None = None
    """Of weights that are not packed, and of activations, in the native runner; None: as stored,
    where the device can use it.
    """
    deterministic: bool = False
    """What a greedy answer says does not depend on batch mates, chunking or prefix hits, bit for
    bit; slower. Of the native runner.
    """
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
    backend: BackendName = "auto"
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
    capabilities: tuple[Capability, ...] = ()
    """What it can do, by its template, its vocabulary and its runner."""
    max_sessions: int = 0
    max_batch_tokens: int = 0
    """Things the user should know, e.g. that the library runs in a slower mode, and why."""


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
    rows: int = 0
    """Sequences that had a part in a step, over all steps: `rows / steps` ran together."""
    preemptions: int = 0
    pinned_tokens: int = 0
    """Of those kept: those that must stay for a while (`Message.keep_s`)."""
    shelved_tokens: int = 0
    """Of prefixes that are kept outside the key-value memory, where those who run do not pay for
    them; a shared one counts each time."""
    shelved_prefixes: int = 0
    requests: tuple[RequestStats, ...] = ()
    """Those that run, then those that wait; the first 256."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How much one host may have loaded at the same time. A model alone may always try to load."""

    models_memory_bytes: int | None = None
    """Most memory that all models may need together; None: nine tenths of what was free when
    nothing was loaded.
    """
    max_models: int | None = None
    """Most models; None: as many as fit."""


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One loaded model, as `hearth ps` shows it."""

    name: str
    path: str
    pid: int
    """0: it is not loaded yet, because others must make way for it."""
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
