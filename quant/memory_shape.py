"""The dimensions of a model that memory estimates need, from a GGUF header, a config or a guess.

Plain numbers; nothing here reads weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from hearth.quant.families.config import ModelConfig
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.types import TensorType
from hearth.quant.gguf.values import NumberArray, StringArray

_TOKENS: Final = "tokenizer.ggml.tokens"
_MERGES: Final = "tokenizer.ggml.merges"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a transformer. Counts of elements, not bytes."""

    layers: int
    width: int
    """Elements of the residual stream (`embedding_length`)."""
    heads: int
    """Query heads of the layer that has the most."""
    kv_heads: int
    """Key-value heads of the layer that has the most."""
    kv_heads_in_all: int
    """Key-value heads of all layers that keep keys and values."""
    key_length: int
    """Elements of a key head."""
    value_length: int
    """Elements of a value head; 0 if values are read from the keys (MLA)."""
    feed_forward: int
    """Elements of the widest row between two matrices of a layer; with experts, the sum over all
    experts that a token uses.
    """
    vocabulary: int
    """Number of tokens, which is the number of rows of the output matrix."""
    merges: int = 0
    """Merges of a byte-pair vocabulary."""
    tokenizer: str = "gpt2"
    """`tokenizer.ggml.model`."""
    windows: bool = False
    """Some layers use a sliding window: a graph has a mask for each kind of attention."""
    layers_without_kv: int = 0
    """Layers that keep no keys and values, such as recurrent ones."""
    dense: bool = False
    """Every token reads the same matrices; False if there are experts, or if it is unknown."""

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        """Keys and values of one token in all layers, in bytes.

        Args:
            type_k, type_v: tensor types in lower case ("f32", "f16", "q8_0", "q4_0", ...), or fp8.

        Raises:
            KeyError: there is no tensor type of that name.
        """
        return self.kv_heads_in_all * (
            _row_bytes(self.key_length, type_k) + _row_bytes(self.value_length, type_v)
        )


def shape_of(header: GgufFile) -> ModelShape:
    """The shape that a header declares.

    Keys are those of llama.cpp's llama-arch.cpp. A sliding window changes no size: Hearth keeps all
    cells of such layers (`swa_full`).

    Raises:
        CorruptFile: a number is missing or of the wrong type.
    """
    arch = header.architecture
    layers = header.integer(f"{arch}.block_count")
    heads = header.per_layer(f"{arch}.attention.head_count", layers, 0)
    kv_heads = header.kv_heads
    key_length, value_length = header.head_lengths
    return ModelShape(
        layers=layers,
        width=header.integer(f"{arch}.embedding_length"),
        heads=max(heads, default=0),
        kv_heads=max(kv_heads, default=0),
        kv_heads_in_all=0 if header.is_encoder else sum(kv_heads),
        key_length=key_length,
        value_length=value_length,
        feed_forward=_feed_forward(header, arch),
        vocabulary=_count(header.value(_TOKENS)) or header.integer(f"{arch}.vocab_size", 0),
        merges=_count(header.value(_MERGES)),
        tokenizer=str(header.value("tokenizer.ggml.model", "gpt2")),
        windows=_most(header.value(f"{arch}.attention.sliding_window")) > 0,
        layers_without_kv=0 if header.is_encoder else sum(count == 0 for count in kv_heads),
        dense=header.integer(f"{arch}.expert_count", 0) == 0,
    )


def shape_of_config(config: ModelConfig) -> ModelShape:
    """The shape of a decoder, from its `config.json`."""
    experts = config.experts
    return ModelShape(
        layers=len(config.layers),
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        kv_heads_in_all=len(config.layers) * config.kv_heads,
        key_length=config.head_dim,
        value_length=config.head_dim,
        feed_forward=config.feed_forward if experts is None else experts.active * experts.width,
        vocabulary=config.vocab_size,
        windows=any(layer.window for layer in config.layers),
        dense=experts is None,
    )


GUESS_FACTOR: Final = 2.0
"""The real size of keys and values is between half and twice that of a guessed shape. This holds
for common models from Qwen3 0.6B to Llama 70B, but not for the few remaining architectures with a
key-value head for every query head."""

_GUESSES: Final = (
    # Largest number of parameters, shape.
    (1.0e9, ModelShape(26, 1024, 16, 8, 208, 128, 128, 3072, 128_000, 150_000)),
    (2.5e9, ModelShape(28, 2048, 16, 8, 224, 128, 128, 6144, 151_936, 151_387)),
    (6.0e9, ModelShape(36, 2560, 32, 8, 288, 128, 128, 9728, 151_936, 151_387)),
    (10e9, ModelShape(32, 4096, 32, 8, 256, 128, 128, 14_336, 128_256, 280_147)),
    (20e9, ModelShape(40, 5120, 40, 8, 320, 128, 128, 17_408, 151_936, 151_387)),
    (40e9, ModelShape(64, 5120, 64, 8, 512, 128, 128, 25_600, 151_936, 151_387)),
)
_LARGEST_GUESS: Final = ModelShape(80, 8192, 64, 8, 640, 128, 128, 28_672, 128_256, 280_147)


def guessed_shape(parameters: float) -> ModelShape:
    """The usual shape of a dense model with that many parameters: the sizes of Qwen3 and Llama 3
    models of the same class, from their published configurations.
    """
    for most, shape in _GUESSES:
        if parameters <= most:
            return shape
    return _LARGEST_GUESS


def shape_given(
    *,
    parameters: float = 0,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
) -> ModelShape:
    """The shape of a model of which only some dimensions are known. If one of `heads` and
    `kv_heads` is missing, it equals the other; feed-forward and vocabulary sizes are the usual ones
    for models of that size.

    Raises:
        ValueError: dimensions are missing or contradict each other; the message names them.
    """
    if layers is heads is kv_heads is head_dim is hidden is None and parameters:
        return guessed_shape(parameters)
    heads = heads or kv_heads
    if heads and hidden and not head_dim:
        head_dim = hidden // heads
    lacking = {"layers": layers, "heads or kv_heads": heads, "head_dim or hidden": head_dim}
    if missing := [name for name, value in lacking.items() if not value]:
        raise ValueError(f"{', '.join(missing)}: needed for the KV cache")
    assert layers is not None
    assert heads is not None
    assert head_dim is not None
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise ValueError(f"heads: {heads} query heads do not share {kv_heads} key-value heads")
    hidden = hidden or heads * head_dim
    like = guessed_shape(parameters or 12 * layers * hidden**2)
    return replace(
        like,
        layers=layers,
        width=hidden,
        heads=heads,
        kv_heads=kv_heads,
        kv_heads_in_all=layers * kv_heads,
        key_length=head_dim,
        value_length=head_dim,
        feed_forward=round(hidden * like.feed_forward / like.width),
    )


def _feed_forward(header: GgufFile, arch: str) -> int:
    """The widest row: that of a dense layer, or of all experts of a token together."""
    dense = _most(header.value(f"{arch}.feed_forward_length"))
    used = _most(header.value(f"{arch}.expert_used_count"))
    if not used:
        return dense
    expert_width = _most(header.value(f"{arch}.expert_feed_forward_length")) or dense
    shared = _most(header.value(f"{arch}.expert_shared_feed_forward_length"))
    shared = shared or expert_width * _most(header.value(f"{arch}.expert_shared_count"))
    return max(dense, used * expert_width + shared)


def _most(found: Any) -> int:
    """A number, or the largest of an array of numbers; 0 if there is none."""
    if isinstance(found, NumberArray):
        return max((int(value) for value in found), default=0)
    return int(found) if isinstance(found, int | float) else 0


def _count(found: Any) -> int:
    return len(found) if isinstance(found, StringArray) else 0


def _row_bytes(elements: int, type_name: str) -> int:
    if type_name == "fp8":
        return elements
    kind = TensorType[type_name.upper()]
    return -(-elements // kind.block_elements) * kind.block_bytes
