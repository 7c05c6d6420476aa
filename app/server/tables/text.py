"""`POST /tokenize`, `/detokenize` and `/apply-template`; `/v1/generate` and its batch."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Parameter, Table, honoured
from hearth.app.server.schema import Flag, ListOf, Number, OneOf, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import (
    ADD_GENERATION_PROMPT,
    CONTINUE,
    MESSAGES,
    TEMPLATE_KWARGS,
    TOOLS,
)
from hearth.app.server.tables.completions import MOST_PROMPTS

TOKENIZE: Final = Table(
    "Tokenize",
    (
        common.MODEL,
        honoured("content", Text(), "the text", aliases=("prompt",)),
        honoured(
            "messages", MESSAGES, "a conversation whose prompt is tokenized; instead of content"
        ),
        honoured("tools", TOOLS, "functions of the conversation"),
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
