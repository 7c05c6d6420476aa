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
        honoured("messages", MESSAGES, "a conversation, tokenized as its prompt; without content"),
        honoured("tools", TOOLS, "functions of the conversation"),
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        ADD_GENERATION_PROMPT,
        CONTINUE,
        honoured("parse_special", Flag(), "special tokens in the text are recognized", "true"),
        honoured(
            "add_special",
            Flag(),
            "add the tokens that the model expects before and after a text",
            "false",
            aliases=("add_special_tokens",),
        ),
        honoured("with_pieces", Flag(), "give the text of each token too", "false"),
        honoured("return_token_strs", Flag(), "give token_strs too, the text of each", "false"),
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
        honoured("tools", TOOLS, "functions that the model may ask for"),
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        ADD_GENERATION_PROMPT,
        CONTINUE,
        common.KEEP_ALIVE,
    ),
)

OPTIMIZATION: Final = honoured(
    "optimization",
    OneOf(("none", "basic", "full")),
    "none: prompts one after another, each computed whole; basic: prompts of a batch together; "
    "full: cached prefixes are not computed again either",
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
