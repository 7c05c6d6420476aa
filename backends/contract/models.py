"""Which model is meant and how it is loaded, and how much may be loaded."""

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
"""What runs a model. "auto": what suits the file and the machine (`backends.worker.choice`)."""

MAX_CONTEXT: Final = 1 << 24
OUTPUT_BYTES: Final = 64 << 20
"""Most memory that rows of logits take for drafts."""
MAX_THREADS: Final = 512
"""GGML_MAX_N_THREADS of ggml.h."""
HEADS_SUFFIX: Final = ".medusa.safetensors"
_HEADS_IN_FOLDERS: Final = "medusa_lm_head"


def heads_path(model: Path) -> Path:
    """Where the Medusa heads of a model are looked for: next to its file, or in its folder."""
    if model.is_dir():
        return model / f"{_HEADS_IN_FOLDERS}.safetensors"
    return model.with_name(model.stem + HEADS_SUFFIX)


def is_heads(path: Path) -> bool:
    """Whether a file is one of Medusa heads, by its name: that of FasterDecoding's, or our own."""
    is_theirs = path.stem == _HEADS_IN_FOLDERS and path.suffix in (".safetensors", ".pt")
    return is_theirs or path.name.endswith(HEADS_SUFFIX)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is loaded. None means: decided on this machine, and reported in `ModelInfo`."""

    context: int | None = number(None, 1, MAX_CONTEXT)
    """Context length in tokens; None: what the model was trained for or what fits, whichever is
    less.
    """
    kv_type: KvType = "f16"
    """Of keys, and of values unless `kv_type_v` says otherwise."""
    kv_type_v: KvType | None = None
    gpu_layers: int | None = number(None, 0, 1 << 20)
    """Layers on Metal or CUDA; None: all where the library has a GPU, else none."""
    device: str | None = None
    """What the native runner computes on: cpu, mps, cuda, or cuda:N for one of several cards; None:
    the first card, else Apple's GPU, else the processor.
    """
    threads: int | None = number(None, 1, MAX_THREADS)
    batch_threads: int | None = number(None, 1, MAX_THREADS)
    max_batch_tokens: int = number(512, 1, 8192)
    """Most tokens of one step, prefill and decode of all sessions together."""
    target_itl_ms: float = number(50.0, 0, 1e9, above=True)
    """While others stream, prefill is cut so that a step takes about this long, or twice a step
    without prefill where that is longer.
    """
    flash_attention: bool | None = None
    """None: the library decides. False with kv_type "f32" is the exact mode of the tests."""
    dtype: Dtype | None = None
    """Of weights that are not packed, and of activations, in the native runner; None: as stored,
    where the device can use it.
    """
    rope_scaling: RopeScalingName | None = None
    rope_factor: float | None = number(None, 1.0, 1024)
    rope_base: float | None = number(None, 1.0, 1e12)
    rope_original_context: int | None = number(None, 1, MAX_CONTEXT)
    """RoPE scaling in place of the file's own, see `RopeChange`; None: as the file says."""
    deterministic: bool = False
    """What a greedy answer says does not depend on batch mates, chunking or prefix hits, bit for
    bit; slower. Of the native runner.
    """
    extra_buffers: bool | None = None
    """llama.cpp's repacked and AMX weights; None: on where the self-test passed."""
    max_sessions: int = 8
    """Sequences that run at the same time."""
    max_waiting: int = number(64, 0, 1 << 20)
    """Requests that may wait beside those that run; more are refused as `Busy`."""
    speculate: Speculate = "auto"
    """For requests that do not say otherwise."""
    speculate_rule: SpeculateRule = "match"
    """For requests that do not say otherwise."""
    draft: str = ""
    """Path of a model of the same vocabulary that makes drafts, or of Medusa heads; empty: none
    does. With `speculate` "medusa" heads in the model's `heads_path` are found without it.
    """
    draft_tokens: int = number(4, 1, 32)
    """Most tokens that are guessed for a sequence before a step."""
    kv_budget_bytes: int | None = number(None, 1, 1 << 60)
    """Most memory for keys and values of all sessions and kept prefixes; None: what
    `memory_fraction` leaves, and no more than every session can use.
    """
    kv_disk_budget_bytes: int = number(4 << 30, 0, 1 << 60)
    """Most that keys and values on disk may take, of all models together; 0: none are written."""
    kv_pool: KvPool = "grow"
    """grow: start small and double when full. static: take the whole budget at load."""
    memory_fraction: float = number(0.9, 0, 1, above=True)
    """Share of the free memory that weights, keys and values may take."""
    chat_template: str | None = None
    """Jinja source to use in place of the model's own."""
    keep_alive_s: float = 300.0
    """Unload after so many idle seconds; negative: never."""

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
        """Rows of logits that a step needs where each session has a draft of `draft_tokens`; fewer
        where these took more than `OUTPUT_BYTES`.
        """
        return min(self.max_sessions * (1 + self.draft_tokens), OUTPUT_BYTES // (4 * vocab_size))

    @property
    def is_on_processor(self) -> bool:
        """No GPU is wanted."""
        return self.gpu_layers == 0 or self.device == "cpu"

    @property
    def card(self) -> int:
        """The number of the NVIDIA card, where there are several."""
        return int((self.device or "").partition(":")[2] or 0)

    @property
    def of_load(self) -> ModelSettings:
        """Those that matter to what is loaded: not how many may wait, nor how long it stays."""
        return replace(self, keep_alive_s=0.0, max_waiting=0)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model a request is for: a file, a backend, and how to load it."""

    path: str
    name: str = ""
    """What people call it; the file's stem if empty."""
    backend: BackendName = "auto"
    settings: ModelSettings = ModelSettings()

    @property
    def draft(self) -> ModelSpec | None:
        """The draft model, loaded in the same way, into half of the memory that is left; None:
        there is none, or `draft` names heads.
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
    """How much one host may have loaded at the same time. A model alone may always try to load."""

    models_memory_bytes: int | None = None
    """Most memory that all models may need together; None: nine tenths of what was free when
    nothing was loaded.
    """
    max_models: int | None = None
    """Most models; None: as many as fit."""
