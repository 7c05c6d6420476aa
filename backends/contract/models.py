"""Which model to use, how to load it, and how much may be loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from hearth.backends.contract.fields import number
from hearth.backends.contract.rope import RopeChange, RopeScalingName
from hearth.backends.contract.sampling import Speculate, SpeculateRule

KvType = Literal["f32", "f16", "q8_0", "q4_0", "fp8"]
KvPool = Literal["grow", "static"]
Dtype = Literal["f32", "f16", "bf16"]
BackendName = Literal["auto", "llamacpp", "native", "remote"]
"""The backend that runs a model. "auto": chosen by file and machine (`backends.worker.choice`)."""

MAX_CONTEXT: Final = 1 << 24
OUTPUT_BYTES: Final = 64 << 20
"""Most memory for the rows of logits that drafts need."""
MAX_THREADS: Final = 512
"""GGML_MAX_N_THREADS of ggml.h."""
HEADS_SUFFIX: Final = ".medusa.safetensors"
_HEADS_IN_FOLDERS: Final = "medusa_lm_head"


def heads_path(model: Path) -> Path:
    """Where the Medusa heads of a model are expected: next to its file, or in its folder."""
    if model.is_dir():
        return model / f"{_HEADS_IN_FOLDERS}.safetensors"
    return model.with_name(model.stem + HEADS_SUFFIX)


def is_heads(path: Path) -> bool:
    """Whether a file holds Medusa heads, by its name: FasterDecoding's or Hearth's own."""
    is_theirs = path.stem == _HEADS_IN_FOLDERS and path.suffix in (".safetensors", ".pt")
    return is_theirs or path.name.endswith(HEADS_SUFFIX)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is loaded. None: chosen on this machine and reported in `ModelInfo`."""

    context: int | None = number(None, 1, MAX_CONTEXT)
    """Context length in tokens; None: the length that the model was trained for or the length that
    fits, whichever is less.
    """
    kv_type: KvType = "f16"
    """Type of keys, and of values unless `kv_type_v` is set."""
    kv_type_v: KvType | None = None
    gpu_layers: int | None = number(None, 0, 1 << 20)
    """Layers on Metal or CUDA; None: all of them if the library has a GPU, else none."""
    device: str | None = None
    """Device of the native runner: cpu, mps, cuda, or cuda:N for one of several cards; None: the
    first card, else Apple's GPU, else the processor.
    """
    threads: int | None = number(None, 1, MAX_THREADS)
    batch_threads: int | None = number(None, 1, MAX_THREADS)
    max_batch_tokens: int = number(512, 1, 8192)
    """Most tokens of one step, prefill and decode of all sessions together."""
    target_itl_ms: float = number(50.0, 0, 1e9, above=True)
    """While other sequences decode, prefill is limited so that a step takes about this long, or
    twice as long as a step without prefill if that is longer.
    """
    flash_attention: bool | None = None
    """None: the library decides. False with kv_type "f32" is the exact mode of the tests."""
    dtype: Dtype | None = None
    """Type of unpacked weights and of activations in the native runner; None: as stored, if the
    device can use it.
    """
    rope_scaling: RopeScalingName | None = None
    rope_factor: float | None = number(None, 1.0, 1024)
    rope_base: float | None = number(None, 1.0, 1e12)
    rope_original_context: int | None = number(None, 1, MAX_CONTEXT)
    """These four replace the RoPE scaling of the file, see `RopeChange`; None: as in the file."""
    deterministic: bool = False
    """A greedy answer does not depend, bit for bit, on the other rows of its batches, on chunking
    or on prefix hits. Slower; only in the native runner.
    """
    extra_buffers: bool | None = None
    """llama.cpp's repacked and AMX weights; None: on if the self-test passed."""
    max_sessions: int = 8
    """Sequences that run at the same time."""
    max_waiting: int = number(64, 0, 1 << 20)
    """Requests that may wait in addition to those that run; more are refused as `Busy`."""
    speculate: Speculate = "auto"
    """Default for requests."""
    speculate_rule: SpeculateRule = "match"
    """Default for requests."""
    draft: str = ""
    """Path of a draft model with the same vocabulary, or of Medusa heads; empty: none. With
    `speculate` "medusa", heads in the model's `heads_path` are found even if this is empty.
    """
    draft_tokens: int = number(4, 1, 32)
    """Most tokens that are drafted for a sequence before a step."""
    kv_budget_bytes: int | None = number(None, 1, 1 << 60)
    """Most memory for keys and values of all sessions and kept prefixes; None: what
    `memory_fraction` leaves, but no more than all sessions can use.
    """
    kv_disk_budget_bytes: int = number(4 << 30, 0, 1 << 60)
    """Most disk space for keys and values of all models together; 0: none are written."""
    kv_pool: KvPool = "grow"
    """grow: start small and double when full. static: take the whole budget at load."""
    memory_fraction: float = number(0.9, 0, 1, above=True)
    """Share of the free memory that weights, keys and values may take."""
    chat_template: str | None = None
    """Jinja source to use in place of the model's own template."""
    keep_alive_s: float = 300.0
    """Unload the model after this many idle seconds; negative: never."""

    @property
    def rope(self) -> RopeChange:
        """How rotary positions are changed."""
        return RopeChange(
            self.rope_scaling, self.rope_factor, self.rope_base, self.rope_original_context
        )

    @property
    def value_type(self) -> KvType:
        """Type of values."""
        return self.kv_type_v or self.kv_type

    @property
    def kv_types(self) -> str:
        """Type of keys and values, or both with a slash between them."""
        same = self.value_type == self.kv_type
        return self.kv_type if same else f"{self.kv_type}/{self.value_type}"

    def outputs(self, vocab_size: int) -> int:
        """Rows of logits that a step needs if each session has a draft of `draft_tokens`; fewer if
        these rows would take more than `OUTPUT_BYTES`.
        """
        return min(self.max_sessions * (1 + self.draft_tokens), OUTPUT_BYTES // (4 * vocab_size))

    @property
    def is_on_processor(self) -> bool:
        """Whether the settings exclude GPUs."""
        return self.gpu_layers == 0 or self.device == "cpu"

    @property
    def card(self) -> int:
        """The number of the NVIDIA card, from 0."""
        return int((self.device or "").partition(":")[2] or 0)

    @property
    def of_load(self) -> ModelSettings:
        """The settings that matter to loading, with the queue length and keep-alive time reset."""
        return replace(self, keep_alive_s=0.0, max_waiting=0)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model a request is for: a file, a backend, and how to load it."""

    path: str
    name: str = ""
    """Display name of the model; empty: the file's stem."""
    backend: BackendName = "auto"
    settings: ModelSettings = ModelSettings()

    @property
    def draft(self) -> ModelSpec | None:
        """The spec of the draft model, with the same settings and half of the remaining memory;
        None if there is no draft model, or `draft` names Medusa heads.
        """
        if not self.settings.draft or is_heads(Path(self.settings.draft)):
            return None
        own = replace(
            self.settings,
            kv_budget_bytes=None,
            memory_fraction=0.5,
            speculate="off",
            draft="",
            chat_template=None,
        )
        return ModelSpec(self.settings.draft, "", self.backend, own)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How much one host may have loaded at the same time. A single model may always try to load."""

    models_memory_bytes: int | None = None
    """Most memory that all models may need together; None: nine tenths of the memory that was free
    when nothing was loaded.
    """
    max_models: int | None = None
    """Most models loaded at the same time; None: as many as fit."""
