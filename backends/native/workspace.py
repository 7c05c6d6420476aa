"""How much memory a step takes in addition to weights, keys and values, without torch.

This is memory for activations, gathered keys and values, and logits. Used for planning, like
`kv_sizes`.
"""

from __future__ import annotations

from typing import Final

from hearth.backends.contract.models import ModelSettings
from hearth.backends.native.kv_sizes import step_tokens
from hearth.backends.native.model_folder import kv_bytes
from hearth.kernels.cuda.packings import CHUNK, MOST_PARTS
from hearth.quant.families.config import ModelConfig

MIN_OUTPUTS: Final = 32
"""Least rows of logits that a step can have: scoring requests many for one sequence."""
_F32: Final = 4
_LOGIT_BYTES: Final = 4 * _F32
"""Bytes of a logit, including those needed to find the largest logit or to sample a token."""
_SCORES_BYTES: Final = 64 << 20
"""Bytes of the scores that are written out at a time, of which there are two copies
(`scores.attend_to`)."""
_MASK_BYTES: Final = _F32 + 3
"""Bytes of an element of an additive mask, and of the bools that it is made of."""
_PADDED: Final = 4 / 3
"""Pages gathered for single tokens, per page that they need (`paged_attention`)."""
_BASE_BYTES: Final = 64 << 20
"""Slices of matrices that are unpacked or widened, the libraries' own buffers, small tensors."""
GRAPH_KEYS: Final = 2048
"""Tokens of the longest row that the smallest CUDA graph can handle; larger graphs double this."""
MOST_GRAPHS: Final = 16
"""Most CUDA graphs of decode steps that exist at a time."""
GRAPH_PARTIAL_BYTES: Final = 128 << 20
"""Most bytes of partial sums of attention in a CUDA graph: larger steps have no graph."""
MOST_PROMPT_GRAPHS: Final = 8
"""Most numbers of prompt tokens that have CUDA graphs at a time."""
_PROMPT_GRAPH_BYTES: Final = 640 << 20
"""Most bytes of float32 activations of the largest of these graphs."""
_GRAPH_BYTES: Final = 8 << 20
"""Driver memory for a graph of a few hundred kernels: an estimate, not measured on hardware."""
_SPLIT_BYTES: Final = 2 << 20
"""Bytes of the partial sums of one product: sixteen rows of 32,768 numbers
(`kernels.cuda.matrix`)."""


class Workspace:
    """Memory that a step takes with float32 activations.

    Half-precision activations take less, and so do kernels that read pages.

    Attributes:
        outputs: most rows of logits of a step.

    Args:
        settings: settings that the model is loaded with.
        graphs: decode steps run as CUDA graphs (`decode_graphs`).

    Raises:
        InvalidParameter: the native runner does not support the KV type.
    """

    def __init__(
        self, config: ModelConfig, settings: ModelSettings, *, graphs: bool = False
    ) -> None:
        self._graphs = graphs
        self._context = settings.context or config.context
        self._config = config.for_context(self._context)
        self._step_tokens = step_tokens(settings)
        self._sessions = settings.max_sessions
        self._drafted = settings.outputs(config.vocab_size)
        self.outputs = max(settings.max_sessions, MIN_OUTPUTS, self._drafted)
        self._kv_bytes = kv_bytes(self._config, settings.kv_type, settings.value_type)
        self._is_packed = not {"q8_0", "fp8"}.isdisjoint((settings.kv_type, settings.value_type))
        writes_scores = config.attention_softcap or config.sinks
        self._fused = settings.flash_attention is not False and not writes_scores

    def bytes(self, pool_tokens: int, *, scores: bool = True) -> int:
        """Bytes of a step with a pool of `pool_tokens` tokens; never decreases with the pool.

        Args:
            scores: include memory for the logits of many tokens of a sequence; otherwise only for
                those of the next token of each session, or of its drafts.
        """
        config, tokens = self._config, self._step_tokens
        stream = 3 * config.width * _F32
        # A layer's feed-forward is computed after its attention has released its memory.
        layer = max(tokens * _feed_forward(config), self._attention(pool_tokens))
        outputs = self.outputs if scores else max(self._sessions, self._drafted)
        logits = outputs * (config.vocab_size * _LOGIT_BYTES + config.width * _F32)
        step = _BASE_BYTES + tokens * stream + max(layer, logits) + self._masks(pool_tokens)
        return step + self.graph_bytes

    @property
    def graph_bytes(self) -> int:
        """The part of `bytes` that CUDA graphs hold permanently, unavailable to other steps."""
        if not self._graphs:
            return 0
        config, rows = self._config, graph_rows(self._sessions)[-1]
        layer = 3 * config.width * _F32 + max(_feed_forward(config), _projected(config))
        # Logits are copied out of the graphs' shared memory, and again before a step ahead.
        logits = 4 * config.vocab_size * _F32 + config.width * _F32
        partial = min(partial_bytes(config, rows, self._context), GRAPH_PARTIAL_BYTES)
        prompts = prompt_tokens(config, self._step_tokens)[-1:]
        steps = rows * (layer + logits) + partial + sum(prompts) * prompt_token_bytes(config)
        return steps + _SPLIT_BYTES + (MOST_GRAPHS + MOST_PROMPT_GRAPHS) * _GRAPH_BYTES

    def _attention(self, pool_tokens: int) -> int:
        config = self._config
        projected = self._step_tokens * _projected(config)
        # As stored, then widened to float32.
        read = self._kv_bytes + config.kv_elements * _F32
        seen = min(self._context, pool_tokens)
        single = self._kv_bytes if self._fused and not self._is_packed else read
        gathered = max(read * seen, int(single * pool_tokens * _PADDED))
        if self._fused:
            return projected + gathered
        scores = _F32 * self._step_tokens * config.heads * seen
        return projected + gathered + 2 * min(scores, _SCORES_BYTES)

    def _masks(self, pool_tokens: int) -> int:
        """Bytes of the masks of all groups of layers, which exist for the whole step."""
        seen = min(self._context, pool_tokens)
        return self._step_tokens * sum(
            _MASK_BYTES * (seen if window is None else min(seen, window + self._step_tokens))
            for window in self._config.groups
        )


def graph_rows(sessions: int) -> tuple[int, ...]:
    """Row counts that CUDA graphs are recorded for, ascending; the last is enough for `sessions`.

    They double up to 64, like the tiles of products, and then grow by 32, because doubling would
    compute too much padding.
    """
    sizes = [1]
    while sizes[-1] < sessions:
        sizes.append(sizes[-1] + min(sizes[-1], 32))
    return tuple(sizes)


def prompt_tokens(config: ModelConfig, most: int) -> tuple[int, ...]:
    """Token counts of prompts that CUDA graphs are recorded for, ascending, up to `most` tokens.

    They double up to 128; beyond, there are four per doubling. Counts whose graphs would take too
    much memory are omitted.
    """
    sizes = [16 << at for at in range(4)]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + (1 << sizes[-1].bit_length() - 3))
    sizes = [size for size in sizes if size < most] + [most]
    return tuple(s for s in sizes if s * prompt_token_bytes(config) <= _PROMPT_GRAPH_BYTES)


def prompt_token_bytes(config: ModelConfig) -> int:
    """Bytes of a token in a CUDA graph: fixed buffers, and activations of a layer."""
    stays = config.width + config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    layer = max(_feed_forward(config), _projected(config))
    return _F32 * (stays + 3 * config.width) + layer


def partial_bytes(config: ModelConfig, rows: int, keys: int) -> int:
    """Bytes of the partial sums of one layer's attention, of rows of one token and `keys` keys.

    Each consists of float32 values, the largest score, and the sum of exponentials.
    """
    parts = min(-(-keys // CHUNK), MOST_PARTS)
    return rows * config.heads * parts * (config.head_dim + 2) * _F32


def _feed_forward(config: ModelConfig) -> int:
    """Bytes of one token: gate, up and the hidden layer.

    For each expert also its input and output, in two orders.
    """
    experts = config.experts
    if experts is None:
        return _F32 * 3 * config.feed_forward
    return _F32 * experts.active * (3 * experts.width + 5 * config.width)


def _projected(config: ModelConfig) -> int:
    """Bytes of one token: queries, keys and values, and the attention result."""
    return _F32 * config.head_dim * (4 * config.heads + 3 * config.kv_heads)
