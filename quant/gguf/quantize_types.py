"""The type that each tensor of a model gets in a mix.

The choices are those of llama.cpp's own quantizer, so that a mix produces what users expect by its
name: `tensor_allows_quantization`, `llama_tensor_get_type_impl` and `tensor_type_fallback` in
`llama-quant.cpp`, as of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.hparams import HyperParameters
from hearth.quant.gguf.mixes import PLAIN, Recipe
from hearth.quant.gguf.types import NOT_WEIGHTS
from hearth.quant.gguf.types import TensorType as T

_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "attn_rel_b.weight"),
    *("altup", "laurel", "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *(f"time_mix_{part}.weight" for part in "w0 w1 w2 v0 v1 v2 a0 a1 a2 g1 g2 lerp_fused".split()),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
"""Parts of the names of tensors that are small, route tokens, or would suffer from rounding."""
_GLM5_KEPT_PARTS = (
    *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
    *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight"),
    *("ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight"),
    "attn_v_b.weight",
)
_GLM5_PRECISE_PARTS = ("attn_q_a", "attn_q_b", "nextn.eh_proj")

_SHORTER_BLOCKS = {
    **dict.fromkeys(
        (T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ4_XS), T.IQ4_NL
    ),
    **dict.fromkeys((T.Q2_0, T.Q2_K, T.Q3_K, T.TQ1_0, T.TQ2_0), T.Q4_0),
    T.Q4_K: T.Q5_0,
    T.Q5_K: T.Q5_1,
    T.Q6_K: T.Q8_0,
}
"""The replacement of a type whose blocks do not divide a row."""
_SHORT_BLOCK = 32


class Role(Enum):
    """The function of a tensor in the model, by its name."""

    OUTPUT = auto()
    EMBEDDING = auto()
    ATTENTION_VALUE = auto()
    """Values, alone or fused with other projections of attention."""
    ATTENTION_KEY = auto()
    ATTENTION_QUERY = auto()
    ATTENTION_OUTPUT = auto()
    FFN_UP = auto()
    FFN_GATE = auto()
    FFN_DOWN = auto()
    OTHER = auto()


_ROLES_BY_PART = (
    ("attn_qkv.weight", Role.ATTENTION_VALUE),
    ("attn_kv_b.weight", Role.ATTENTION_VALUE),
    ("attn_v.weight", Role.ATTENTION_VALUE),
    ("attn_k.weight", Role.ATTENTION_KEY),
    ("attn_q.weight", Role.ATTENTION_QUERY),
    ("attn_output.weight", Role.ATTENTION_OUTPUT),
    ("ffn_up", Role.FFN_UP),
    ("ffn_gate", Role.FFN_GATE),
    ("ffn_down", Role.FFN_DOWN),
)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The properties of a model that the rules depend on."""

    architecture: str
    layers: int
    experts: int
    """0 if there are none."""
    query_groups: int
    """Query heads that share one key-value head, in the first layer."""
    is_llama_70b: bool
    """A model with 70 billion parameters, which llama.cpp recognizes by the number of layers."""

    @classmethod
    def of(cls, file: GgufFile, shape: HyperParameters) -> ModelFacts:
        """The facts of `file`, whose hyper-parameters are `shape`."""
        heads, heads_kv = shape.heads[0], shape.heads_kv[0]
        arch = shape.architecture
        depth = shape.layers - file.integer(f"{arch}.nextn_predict_layers", 0)
        large = {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(arch) == depth
        if arch == "llama":
            large = depth == 80 and shape.experts != 8 and heads != heads_kv
        groups = heads // heads_kv if heads_kv else 0
        return cls(arch, shape.layers, shape.experts, groups, large)


@dataclass(frozen=True, slots=True)
class Choice:
    """The type that a tensor gets; `wanted` differs if its blocks do not fit the rows."""

    type: T
    wanted: T


def role_of(name: str) -> Role:
    """The role of the tensor with that name."""
    if name == "output.weight":
        return Role.OUTPUT
    if name in _EMBEDDINGS:
        return Role.EMBEDDING
    return next((role for part, role in _ROLES_BY_PART if part in name), Role.OTHER)


def may_change(tensor: TensorInfo, architecture: str) -> bool:
    """Whether the tensor is a weight matrix that may be rounded; others are kept unchanged."""
    name = tensor.name
    if len(trimmed(tensor.shape)) < 2 or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    kept = _KEPT_PARTS + (_GLM5_KEPT_PARTS if architecture == "glm5-next" else ())
    return not any(part in name for part in kept)


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` without trailing ones, as ggml counts dimensions."""
    length = len(shape)
    while length > 1 and shape[length - 1] == 1:
        length -= 1
    return shape[:length]


def ordered(tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    """The tensors in the order in which llama.cpp quantizes and writes them: by layer, then by
    name.
    """

    def key(tensor: TensorInfo) -> tuple[int, bytes]:
        match = re.match(r"blk\.\s*([+-]?\d+)", tensor.name, re.ASCII)
        return (int(match[1]) if match else -1, tensor.name.encode())

    return sorted(tensors, key=key)


def choose_types(
    tensors: Sequence[TensorInfo], facts: ModelFacts, recipe: Recipe, *, with_matrix: bool
) -> list[Choice]:
    """The type of each tensor, in the order of `tensors`, which must be that of `ordered`.

    Args:
        with_matrix: there is an importance matrix, on which some rules depend.

    Raises:
        CannotQuantize: neither the chosen type nor its replacement fits the rows of a tensor, or
            the name of a tensor with experts does not contain a valid layer.
    """
    rules = _Rules(tensors, facts, recipe, with_matrix=with_matrix)
    return [rules.choice(tensor) for tensor in tensors]


class _Rules:
    """Chooses types for a model's tensors in order; some rules count the preceding tensors."""

    def __init__(
        self,
        tensors: Sequence[TensorInfo],
        facts: ModelFacts,
        recipe: Recipe,
        *,
        with_matrix: bool,
    ) -> None:
        roles = Counter(role_of(tensor.name) for tensor in tensors)
        self._facts = facts
        self._recipe = recipe
        self._mix = recipe.mix.name
        self._base = recipe.mix.base
        self._with_matrix = with_matrix
        self._tied = not roles[Role.OUTPUT]
        self._values = roles[Role.ATTENTION_VALUE]
        self._seen: Counter[Role] = Counter()

    def choice(self, tensor: TensorInfo) -> Choice:
        """The type of `tensor`."""
        if tensor.type in NOT_WEIGHTS or not may_change(tensor, self._facts.architecture):
            return Choice(tensor.type, tensor.type)
        wanted = self._recipe.override_of(tensor.name)
        if wanted is None:
            wanted = self._base if self._recipe.mix.keeps_numbers else self._wanted(tensor)
        return Choice(_fitting(tensor, wanted), wanted)

    def _wanted(self, tensor: TensorInfo) -> T:
        name, role, facts = tensor.name, role_of(tensor.name), self._facts
        if facts.architecture == "glm5-next" and any(part in name for part in _GLM5_PRECISE_PARTS):
            return T.Q8_0
        if role is Role.OUTPUT or (self._tied and role is Role.EMBEDDING):
            return self._output(tensor)
        if self._mix == "MXFP4_MOE":
            return self._four_bit_experts(tensor, role)
        if role is Role.EMBEDDING:
            return _EMBEDDING_TYPES.get(self._mix, self._base)
        if self._mix in _ONE_AND_TWO_BITS:
            return self._few_bits(role)
        match role:
            case Role.ATTENTION_VALUE:
                return self._values_of_attention()
            case Role.ATTENTION_KEY if facts.experts == 8:
                return T.Q8_0
            case Role.ATTENTION_KEY | Role.ATTENTION_QUERY:
                return {"IQ3_XS": T.IQ3_XXS, "IQ3_XXS": T.IQ2_S}.get(self._mix, self._base)
            case Role.ATTENTION_OUTPUT:
                return self._output_of_attention()
            case Role.FFN_DOWN:
                return self._down(*self._layer(tensor, role))
            case Role.FFN_GATE | Role.FFN_UP:
                layer, layers = self._layer(tensor, role)
                in_the_middle = layers // 8 <= layer < 7 * layers // 8
                return T.IQ3_XXS if self._mix == "IQ3_XS" and in_the_middle else self._base
            case _:
                return self._base

    def _output(self, tensor: TensorInfo) -> T:
        """The type of the matrix that computes logits: every token passes through it, and its
        errors are not averaged out.
        """
        whole_blocks = tensor.shape[0] % self._base.block_elements == 0
        if self._mix == "MXFP4_MOE" or self._facts.architecture == "falcon" or not whole_blocks:
            return T.Q8_0
        if self._mix in _ONE_AND_TWO_BITS or self._mix == "IQ3_XXS":
            return T.Q5_K
        return T.Q8_0 if self._base is T.Q8_0 else T.Q6_K

    def _four_bit_experts(self, tensor: TensorInfo, role: Role) -> T:
        stacked = len(tensor.shape) > 2 and tensor.shape[2] > 1
        if self._facts.architecture == "bailingmoe3":
            stacked = stacked and role in (Role.FFN_UP, Role.FFN_GATE, Role.FFN_DOWN)
        return T.MXFP4 if stacked else T.Q8_0

    def _few_bits(self, role: Role) -> T:
        """Types in mixes of one and two bits, which only work if a few tensors have more bits."""
        two_and_a_half = self._mix in ("IQ2_S", "IQ2_M")
        facts = self._facts
        more = T.IQ3_S if two_and_a_half else T.Q2_K
        if role is Role.ATTENTION_VALUE:
            return T.Q4_K if facts.query_groups >= 4 or facts.experts >= 4 else more
        if role is Role.ATTENTION_KEY and facts.experts == 8:
            return T.Q4_K
        if role is Role.FFN_DOWN:
            return more if self._count(role) < facts.layers // 8 else self._base
        if role is Role.ATTENTION_OUTPUT:
            if facts.experts == 8:
                return T.Q5_K
            if two_and_a_half:
                return T.IQ3_S
            return T.IQ2_XXS if self._mix in ("IQ1_S", "IQ1_M") else self._base
        return self._base

    def _values_of_attention(self) -> T:
        """The type of values, which are small compared with the other matrices, while everything
        that attention outputs passes through them.
        """
        at = self._count(Role.ATTENTION_VALUE)
        if self._facts.experts == 8:
            return T.Q8_0
        shared = self._facts.query_groups >= 4
        match self._mix:
            case "Q2_K":
                kind = T.Q4_K if shared else T.Q3_K
            case "Q2_K_S" | "IQ3_XS" | "IQ3_S" if shared:
                kind = T.Q4_K
            case "IQ3_XXS":
                kind = T.Q4_K if shared else T.IQ3_XXS if self._with_matrix else T.IQ3_S
            case "IQ3_M":
                kind = T.Q4_K
            case "Q3_K_M":
                kind = T.Q5_K if at < 2 else T.Q4_K
            case "Q3_K_L":
                kind = T.Q5_K
            case "IQ4_NL" | "IQ4_XS" if shared:
                kind = T.Q5_K
            case "Q4_K_M" | "Q5_K_M" if _is_sensitive(at, self._values):
                kind = T.Q6_K
            case "Q4_K_S" if at < 4:
                kind = T.Q5_K
            case _:
                kind = self._base
        if self._facts.is_llama_70b and kind in (T.Q3_K, T.Q4_K):
            return T.Q5_K
        return kind

    def _output_of_attention(self) -> T:
        if self._facts.architecture == "falcon":
            return T.Q4_K if self._mix == "Q3_K_L" else self._base
        if self._facts.experts == 8:
            return T.Q5_K if self._mix in _EXPERTS_WANT_Q5_K else self._base
        return _ATTENTION_OUTPUT_TYPES.get(self._mix, self._base)

    def _down(self, layer: int, layers: int) -> T:
        """The type of the last matrix of the feed-forward part, whose inputs can be large."""
        falcon = self._facts.architecture == "falcon"
        first_eighth, first_sixteenth = layer < layers // 8, layer < layers // 16
        sensitive = _is_sensitive(layer, layers)
        match self._mix:
            case "Q2_K":
                return T.Q3_K
            case "Q2_K_S" if first_eighth:
                return T.Q4_K
            case "IQ3_XXS" if not self._with_matrix:
                return T.Q4_K if first_eighth else T.Q3_K
            case "Q3_K_M":
                if first_sixteenth:
                    return T.Q5_K
                return T.Q4_K if not falcon or sensitive else T.Q3_K
            case "IQ3_M" if first_eighth or (self._facts.experts == 8 and sensitive):
                return T.Q4_K
            case "Q3_K_L":
                return T.Q4_K if falcon else T.Q5_K
            case "Q4_K_M" if falcon:
                return T.Q6_K if first_sixteenth else T.Q5_K if sensitive else T.Q4_K
            case "Q4_K_M" | "Q5_K_M" if sensitive:
                return T.Q6_K
            case "IQ4_NL" | "IQ4_XS" if first_eighth and not self._with_matrix:
                return T.Q5_K
            case "Q4_K_S" if first_eighth and not falcon:
                return T.Q5_K
            case "Q4_0" | "Q5_0" if first_eighth and self._with_matrix:
                return T.Q4_1 if self._mix == "Q4_0" else T.Q5_1
            case _:
                return self._base

    def _layer(self, tensor: TensorInfo, role: Role) -> tuple[int, int]:
        """(layer, layers): by counting or, for models with experts, by the name."""
        at, layers = self._count(role), self._facts.layers
        if self._facts.experts <= 1:
            return at, layers
        match = re.match(r"blk\.(\d+)\.", tensor.name, re.ASCII)
        if match is None or int(match[1]) >= layers:
            raise CannotQuantize(
                f"The layer of the tensor {tensor.name!r} cannot be told; there are {layers:,}.",
                "Choose a type for it (--tensor), or a plain one such as F16.",
                tensor=tensor.name,
            )
        return int(match[1]), layers

    def _count(self, role: Role) -> int:
        """The number of preceding tensors with that role."""
        self._seen[role] += 1
        return self._seen[role] - 1


_ONE_AND_TWO_BITS = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
_EMBEDDING_TYPES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), T.Q2_K),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), T.IQ3_S),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), T.Q4_K),
}
_ATTENTION_OUTPUT_TYPES = {
    "Q2_K": T.Q3_K,
    "IQ3_XXS": T.IQ3_S,
    "Q3_K_M": T.Q4_K,
    "Q3_K_L": T.Q5_K,
    "IQ3_M": T.Q4_K,
}
_EXPERTS_WANT_Q5_K = frozenset(
    "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS".split()
)


def _is_sensitive(layer: int, layers: int) -> bool:
    """Whether a layer is in the first or last eighth, or every third one in between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _fitting(tensor: TensorInfo, wanted: T) -> T:
    """`wanted`, or its replacement if its blocks do not divide the tensor's rows."""
    length = tensor.shape[0]
    if length % wanted.block_elements == 0 or wanted in PLAIN:
        return wanted
    shorter = _SHORTER_BLOCKS.get(wanted, wanted)
    if length % shorter.block_elements == 0:
        return shorter
    if wanted.block_elements > _SHORT_BLOCK and wanted not in _SHORTER_BLOCKS:
        raise CannotQuantize(
            f"The rows of {tensor.name!r} have {length:,} weights, no multiple of "
            f"{wanted.block_elements}, and no type stands for {wanted.name}.",
            "Choose another type for it (--tensor), or another mix.",
            tensor=tensor.name,
        )
    return T.F16
