"""The bodies of endpoints for text or token ids.

`/v1/completions`, `/v1/embeddings`, `/v1/rerank`, `/v1/generate` and its batch, `/tokenize`,
`/detokenize` and `/apply-template`.
"""

from __future__ import annotations

from typing import Final, get_args

from hearth.app.server.parameters import Parameter, Table, honoured, refused
from hearth.app.server.schema import AnyOf, Flag, ListOf, Number, OneOf, Sentinel, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import (
    ADD_GENERATION_PROMPT,
    CONSTRAINTS,
    CONTINUE,
    MESSAGES,
    PARALLEL_CALLS,
    TEMPLATE_KWARGS,
    TOOLS,
)
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.validate import MOST_TEXTS

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
        *common.limits("min_tokens", "n", "priority", "attention_sinks"),
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
        *common.COMPLETIONS,
        honoured(
            "use_beam_search",
            Flag(),
            "search for the likeliest answers, in place of drawing them",
            "false",
        ),
        honoured(
            "beam_width",
            Number(1, 16, whole=True),
            "with use_beam_search: continue this many hypotheses together",
            "best_of, or n where it is more than 1, or 4",
        ),
        honoured(
            "length_penalty",
            Number(-10, 10),
            "with use_beam_search: rank by log probability over length to this power; more "
            "prefers longer answers",
            "1",
        ),
        honoured(
            "early_stopping",
            AnyOf((Flag(), OneOf(("never",)))),
            "with use_beam_search: end with the first beam_width complete hypotheses (true), when "
            "no other seems better (false), or when none can become better (never)",
            "false",
        ),
        refused("prompt_embeds", "prompts are text or token ids"),
    ),
)

INPUT: Final = AnyOf((Text(1), TOKENS, ListOf(AnyOf((Text(1), TOKENS)), MOST_TEXTS, 1)))
"""A string, token ids, or an array of either."""

EMBEDDINGS: Final = Table(
    "CreateEmbedding",
    (
        common.MODEL,
        honoured("input", INPUT, "text or token ids, or an array of either", required=True),
        honoured("encoding_format", OneOf(("float", "base64")), "format of the vectors", "float"),
        honoured(
            "dimensions",
            Number(1, 65_536, whole=True),
            "keep the first numbers of each vector, this many, and normalize it; for models that "
            "were trained for it",
            "all",
        ),
        honoured(
            "pooling",
            OneOf(get_args(Pooling)),
            "how the vectors of the tokens are combined",
            "model: as the model was trained, or mean if that is unknown",
        ),
        common.KEEP_ALIVE,
        common.USER,
    ),
)

_DOCUMENT: Final = Table("Document", (honoured("text", Text(1), "its text", required=True),))
RERANK: Final = Table(
    "Rerank",
    (
        common.MODEL,
        honoured("query", Text(1), "the query", required=True),
        honoured(
            "documents",
            ListOf(AnyOf((Text(1), _DOCUMENT)), MOST_TEXTS, 1),
            "the texts to rank",
            required=True,
        ),
        honoured("top_n", Number(1, MOST_TEXTS, whole=True), "return this many of the best", "all"),
        honoured("return_documents", Flag(), "also return the texts", "false"),
        common.KEEP_ALIVE,
        common.USER,
    ),
)

TOKENIZE: Final = Table(
    "Tokenize",
    (
        common.MODEL,
        honoured("content", Text(), "the text", aliases=("prompt",)),
        honoured(
            "messages", MESSAGES, "a conversation whose prompt is tokenized; instead of content"
        ),
        honoured("tools", TOOLS, "functions of the conversation"),
        PARALLEL_CALLS,
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        ADD_GENERATION_PROMPT,
        CONTINUE,
        honoured("parse_special", Flag(), "recognize special tokens in the text", "true"),
        honoured(
            "add_special",
            Flag(),
            "add the special tokens that the model expects before and after a text",
            "false",
            aliases=("add_special_tokens",),
        ),
        honoured("with_pieces", Flag(), "return each token as an object with its text", "false"),
        honoured("return_token_strs", Flag(), "also return the texts in token_strs", "false"),
        common.KEEP_ALIVE,
    ),
)
DETOKENIZE: Final = Table(
    "Detokenize",
    (
        common.MODEL,
        honoured(
            "tokens", ListOf(Number(0, 2**31 - 1, whole=True), 1 << 20), "token ids", required=True
        ),
        common.KEEP_ALIVE,
    ),
)
APPLY_TEMPLATE: Final = Table(
    "ApplyTemplate",
    (
        common.MODEL,
        honoured("messages", MESSAGES, "the conversation", required=True),
        honoured("tools", TOOLS, "functions that the model can call"),
        PARALLEL_CALLS,
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        ADD_GENERATION_PROMPT,
        CONTINUE,
        common.KEEP_ALIVE,
    ),
)

OPTIMIZATION: Final = honoured(
    "optimization",
    OneOf(("none", "basic", "full")),
    "none: compute prompts one after another and without cached prefixes; basic: compute the "
    "prompts of a batch together; full: also use cached prefixes",
    "full",
)


def _generating(*first: Parameter) -> tuple[Parameter, ...]:
    return (
        common.MODEL,
        *first,
        *common.limits("max_tokens"),
        *common.sampling(),
        common.STOP,
        OPTIMIZATION,
        common.KEEP_ALIVE,
        common.USER,
    )


GENERATE: Final = Table(
    "Generate",
    _generating(honoured("prompt", Text(1), "the text to continue", required=True), common.STREAM),
)
GENERATE_BATCH: Final = Table(
    "GenerateBatch",
    _generating(honoured("prompts", ListOf(Text(1), MOST_PROMPTS, 1), "the texts", required=True)),
)
