"""How much memory a step takes beside weights, keys and values: activations, what attention
gathers, and logits. The arithmetic of planning, as `kv_sizes`. Without torch.
"""

from __future__ import annotations

from typing import Final

from hearth.backends.contract.models import ModelSettings
from hearth.backends.native.kv_sizes import step_tokens
from hearth.backends.native.model_folder import kv_bytes
from hearth.kernels.cuda.packings import CHUNK, MOST_PARTS
from hearth.quant.families.config import ModelConfig

MIN_OUTPUTS: Final = 32
"""Rows of logits that a step can have, at least: scoring asks for many of one sequence."""
_F32: Final = 4
_LOGIT_BYTES: Final = 4 * _F32
"""Of a logit: itself, and what finding the largest, or a token, takes."""
_SCORES_BYTES: Final = 64 << 20
"""Of scores that are written out at a time, of which there are two copies (`scores.attend_to`)."""
_MASK_BYTES: Final = _F32 + 3
"""Of a mask to add, and of the bools that it is made of."""
_PADDED: Final = 4 / 3
"""Pages that are gathered for single tokens, for each that they need (`paged_attention`)."""
_BASE_BYTES: Final = 64 << 20
"""Slices of matrices that are unpacked or widened, the libraries' own buffers, small tensors."""
GRAPH_KEYS: Final = 2048
"""Tokens of the longest row that the smallest CUDA graph is for; others are for twice as many, and
so on."""
MOST_GRAPHS: Final = 16
"""That exist at a time."""
GRAPH_PARTIAL_BYTES: Final = 128 << 20
"""Of sums of parts of attention: steps that take more have no graph."""
MOST_PROMPT_GRAPHS: Final = 8
"""Numbers of tokens of prompts that CUDA graphs exist for at a time."""
_PROMPT_GRAPH_BYTES: Final = 640 << 20
"""Of activations in float32 of the largest of them."""
_GRAPH_BYTES: Final = 8 << 20
"""Of the driver for a graph of some hundred kernels: an estimate, not measured on hardware."""
_SPLIT_BYTES: Final = 2 << 20
"""Of partial sums of one product: sixteen rows of 32,768 numbers (`kernels.cuda.matrix`)."""


class Workspace:
    """What a step of a model takes with activations of float32. Those of half precision take less,
    and so do kernels that read pages.

    Attributes:
        outputs: rows of logits that a step can have.

    Args:
        settings: what the model is loaded with.
        graphs: steps of single tokens are CUDA graphs (`decode_graphs`).

    Raises:
        InvalidParameter: a KV type that the native runner does not have.
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
        """With a pool of `pool_tokens` tokens; never less for more tokens.

        Args:
            scores: it may be asked for the logits of many tokens of a sequence, which is what is
                set aside for; False: for those of the next token of each session alone.
        """
        config, tokens = self._config, self._step_tokens
        stream = 3 * config.width * _F32
        # A layer's feed-forward is computed after its attention has given its memory back.
        layer = max(tokens * _feed_forward(config), self._attention(pool_tokens))
        outputs = self.outputs if scores else max(self._sessions, self._drafted)
        logits = outputs * (config.vocab_size * _LOGIT_BYTES + config.width * _F32)
        step = _BASE_BYTES + tokens * stream + max(layer, logits) + self._masks(pool_tokens)
        return step + self.graph_bytes

    @property
    def graph_bytes(self) -> int:
        """Of these, what CUDA graphs keep for themselves: memory that other steps do not get."""
        if not self._graphs:
            return 0
        config, rows = self._config, graph_rows(self._sessions)[-1]
        layer = 3 * config.width * _F32 + max(_feed_forward(config), _projected(config))
        # Logits are copied out of the memory that graphs share, and again before a step ahead.
        logits = 4 * config.vocab_size * _F32 + config.width * _F32
        partial = min(partial_bytes(config, rows, self._context), GRAPH_PARTIAL_BYTES)
        prompts = prompt_tokens(config, self._step_tokens)[-1:]
        steps = rows * (layer + logits) + partial + sum(prompts) * prompt_token_bytes(config)
        return steps + _SPLIT_BYTES + (MOST_GRAPHS + MOST_PROMPT_GRAPHS) * _GRAPH_BYTES

    def _attention(self, pool_tokens: int) -> int:
        config = self._config
        projected = self._step_tokens * _projected(config)
        # As they are stored, then widened to float32.
        read = self._kv_bytes + config.kv_elements * _F32
        seen = min(self._context, pool_tokens)
        single = self._kv_bytes if self._fused and not self._is_packed else read
        gathered = max(read * seen, int(single * pool_tokens * _PADDED))
        if self._fused:
            return projected + gathered
        scores = _F32 * self._step_tokens * config.heads * seen
        return projected + gathered + 2 * min(scores, _SCORES_BYTES)

    def _masks(self, pool_tokens: int) -> int:
        """Of all kinds of layers, for the whole of a step."""
        seen = min(self._context, pool_tokens)
        return self._step_tokens * sum(
            _MASK_BYTES * (seen if window is None else min(seen, window + self._step_tokens))
            for window in self._config.groups
        )


def graph_rows(sessions: int) -> tuple[int, ...]:
    """Rows that CUDA graphs are recorded for, ascending; the last is enough for `sessions`. Up to
    64 they double, as tiles of products do; more would compute much for nothing.
    """
    sizes = [1]
    while sizes[-1] < sessions:
        sizes.append(sizes[-1] + min(sizes[-1], 32))
    return tuple(sizes)


def prompt_tokens(config: ModelConfig, most: int) -> tuple[int, ...]:
    """Tokens of prompts that CUDA graphs are recorded for, ascending, of steps of `most` tokens:
    they double up to 128, and then there are four for each time that they double. None where they
    would take too much memory.
    """
    sizes = [16 << at for at in range(4)]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + (1 << sizes[-1].bit_length() - 3))
    sizes = [size for size in sizes if size < most] + [most]
    return tuple(s for s in sizes if s * prompt_token_bytes(config) <= _PROMPT_GRAPH_BYTES)


def prompt_token_bytes(config: ModelConfig) -> int:
    """Of a token in a CUDA graph: what stays in place, and what a layer takes."""
    stays = config.width + config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    layer = max(_feed_forward(config), _projected(config))
    return _F32 * (stays + 3 * config.width) + layer


def partial_bytes(config: ModelConfig, rows: int, keys: int) -> int:
    """Sums of parts of one layer's attention, of rows of one token and up to `keys` keys: float32
    values, the largest score, and the sum of exponentials.
    """
    parts = min(-(-keys // CHUNK), MOST_PARTS)
    return rows * config.heads * parts * (config.head_dim + 2) * _F32


def _feed_forward(config: ModelConfig) -> int:
    """Of one token: gate and up, what comes of them, and of each expert what it is given, and
    gives, in two orders.
    """
    experts = config.experts
    if experts is None:
        return _F32 * 3 * config.feed_forward
    return _F32 * experts.active * (3 * experts.width + 5 * config.width)


def _projected(config: ModelConfig) -> int:
    """Of one token: queries, keys and values, and what attention makes of them."""
    return _F32 * config.head_dim * (4 * config.heads + 3 * config.kv_heads)
