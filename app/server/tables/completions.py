"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Table, honoured, refused, without_effect
from hearth.app.server.schema import AnyObject, AnyOf, Flag, ListOf, Number, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import RESPONSE_FORMAT

MOST_PROMPTS: Final = 256
TOKENS: Final = ListOf(Number(0, 2**31 - 1, whole=True), 1 << 20, 1)
PROMPT: Final = AnyOf((Text(1), TOKENS, ListOf(AnyOf((Text(1), TOKENS)), MOST_PROMPTS, 1)))
"""A text, token ids, or a list of either."""

COMPLETIONS: Final = Table(
    "CreateCompletion",
    (
        common.MODEL,
        honoured("prompt", PROMPT, "text or token ids, or a list of either", required=True),
        honoured("suffix", Text(), "what comes after the text to be found (infill)"),
        common.STREAM,
        common.STREAM_OPTIONS,
        honoured(
            "max_tokens",
            Number(0, 2**31 - 1, whole=True),
            "at most this many new tokens; 0 computes the prompt alone, for its logprobs",
            "16, or the settings'",
        ),
        *common.limits("min_tokens", "n", "priority"),
        honoured(
            "best_of", Number(1, 16, whole=True), "make so many and give the n likeliest", "n"
        ),
        honoured("echo", Flag(), "give the prompt back before the answer", "false"),
        honoured(
            "logprobs",
            Number(0, 20, whole=True),
            "log probability of each token, and of so many others",
        ),
        *common.sampling(),
        common.STOP,
        common.IGNORE_EOS,
        honoured("response_format", RESPONSE_FORMAT, "what the answer must look like", "text"),
        common.CACHE_PROMPT,
        common.RETURN_PROGRESS,
        common.KEEP_ALIVE,
        common.USER,
        without_effect("metadata", AnyObject(), "nothing is stored here"),
        refused("beam_width", "there is no beam search yet"),
        refused("use_beam_search", "there is no beam search yet"),
        refused("grammar", "use response_format"),
        refused("prompt_embeds", "prompts are text or token ids"),
    ),
)
