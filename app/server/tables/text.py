"""`POST /tokenize`, `/detokenize` and `/apply-template`; `/v1/generate` and its batch."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Parameter, Table, honoured
from hearth.app.server.schema import Flag, ListOf, Number, OneOf, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import MESSAGES, TEMPLATE_KWARGS, TOOLS
from hearth.app.server.tables.completions import MOST_PROMPTS

TOKENIZE: Final = Table(
    "Tokenize",
    (
        common.MODEL,
        honoured("content", Text(), "the text", required=True),
        honoured("parse_special", Flag(), "special tokens in it are recognised", "true"),
        honoured("with_pieces", Flag(), "give the text of each token as well", "false"),
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
        honoured(
            "continue_final_message",
            Flag(),
            "a last message of the assistant is the beginning of the answer",
            "true",
        ),
        common.KEEP_ALIVE,
    ),
)

OPTIMIZATION: Final = honoured(
    "optimization",
    OneOf(("none", "basic", "full")),
    "none: prompts one after another, each computed whole; basic: prompts of a batch together; "
    "full: and known beginnings are not computed again (no model here has a drafter yet, so that "
    "none of them speculates)",
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
    _generating(
        honoured("prompt", Text(1), "the text to go on from", required=True), common.STREAM
    ),
)
GENERATE_BATCH: Final = Table(
    "GenerateBatch",
    _generating(honoured("prompts", ListOf(Text(1), MOST_PROMPTS, 1), "the texts", required=True)),
)
