"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Table, honoured, refused
from hearth.app.server.schema import AnyOf, Flag, ListOf, Number, OneOf, Sentinel, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import CONSTRAINTS

MOST_PROMPTS: Final = 256
TOKENS: Final = ListOf(Number(0, 2**31 - 1, whole=True), 1 << 20, 1)
PROMPT: Final = AnyOf((Text(1), TOKENS, ListOf(AnyOf((Text(1), TOKENS)), MOST_PROMPTS, 1)))
"""A string, token ids, or an array of either."""

COMPLETIONS: Final = Table(
    "CreateCompletion",
    (
        common.MODEL,
        honoured("prompt", PROMPT, "text or token ids, or an array of either", required=True),
        honoured("suffix", Text(), "the text after the answer: the model fills in the middle"),
        common.STREAM,
        common.STREAM_OPTIONS,
        honoured(
            "max_tokens",
            Sentinel(Number(0, 2**31 - 1, whole=True)),
            "the maximum of new tokens; 0 computes only the prompt, for its logprobs",
            "16, or the settings'",
            aliases=("n_predict",),
        ),
        *common.limits("min_tokens", "n", "priority"),
        honoured(
            "best_of",
            Number(1, 16, whole=True),
            "generate this many and return the n likeliest",
            "n",
        ),
        honoured("echo", Flag(), "return the prompt before the answer", "false"),
        honoured(
            "logprobs",
            Number(0, 20, whole=True),
            "return the log probability of each token, and of this many alternatives",
        ),
        *common.sampling(),
        common.STOP,
        *common.STOP_TOKENS,
        common.IGNORE_EOS,
        common.TRUNCATE,
        common.PROMPT_LOGPROBS,
        common.RETURN_TOKEN_IDS,
        *CONSTRAINTS,
        common.CACHE_PROMPT,
        common.RETURN_PROGRESS,
        common.KEEP_ALIVE,
        common.USER,
        *common.OPENAI_METADATA,
        refused("use_beam_search", "there is no beam search", OneOf((False,))),
        refused("prompt_embeds", "prompts are text or token ids"),
    ),
)
