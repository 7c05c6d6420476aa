"""JSON schemas of the data of one event of each stream."""

from __future__ import annotations

from typing import Final

from hearth.app.server.schema import Json
from hearth.app.server.tables.answers import (
    COUNT,
    ERROR,
    GENERATED,
    LOGPROBS,
    MEASURED,
    PROMPT_TOKENS,
    REASON,
    TEXT,
    TEXT_LOGPROBS,
    TOKEN_IDS,
    USAGE,
    answer,
    exactly,
    many,
    one,
    or_null,
)

_PROGRESS: Final = exactly({"processed": COUNT, "total": COUNT})


def _chunk(kind: str, choice: Json) -> Json:
    """A chunk in OpenAI's format, or the error that ends a failed stream."""
    chunk = exactly(
        {
            "id": TEXT,
            "object": one(kind),
            "created": COUNT,
            "model": TEXT,
            "system_fingerprint": TEXT,
            "choices": many(choice),
        },
        {
            "usage": or_null(USAGE),
            "prompt_progress": _PROGRESS,
            **MEASURED,
            **PROMPT_TOKENS,
        },
    )
    return {"anyOf": [chunk, ERROR]}


_CALL_PIECE: Final = exactly(
    {"index": COUNT, "function": exactly({"arguments": TEXT}, {"name": TEXT})},
    {"id": TEXT, "type": one("function")},
)
CHAT: Final = _chunk(
    "chat.completion.chunk",
    exactly(
        {
            "index": COUNT,
            "delta": exactly(
                {},
                {
                    "role": one("assistant"),
                    "content": TEXT,
                    "reasoning_content": TEXT,
                    "reasoning": TEXT,
                    "tool_calls": many(_CALL_PIECE),
                },
            ),
            "logprobs": or_null(LOGPROBS),
            "finish_reason": or_null(REASON),
        },
        TOKEN_IDS,
    ),
)
COMPLETION: Final = _chunk(
    "text_completion",
    exactly(
        {
            "index": COUNT,
            "text": TEXT,
            "logprobs": or_null(TEXT_LOGPROBS),
            "finish_reason": or_null(REASON),
        },
        {**TOKEN_IDS, **PROMPT_TOKENS},
    ),
)


def _typed(*types: str) -> Json:
    return {"type": "object", "properties": {"type": one(*types)}, "required": ["type"]}


_RESPONSE: Final = _typed(
    *(
        f"response.{name}"
        for name in (
            *("created", "in_progress", "completed", "incomplete", "failed"),
            *("output_item.added", "output_item.done", "content_part.added", "content_part.done"),
            *("output_text.delta", "output_text.done"),
            *("reasoning_text.delta", "reasoning_text.done"),
            *("function_call_arguments.delta", "function_call_arguments.done"),
        )
    ),
    "error",
)
RESPONSE: Final[Json] = {
    **_RESPONSE,
    "properties": {**_RESPONSE["properties"], "sequence_number": COUNT},
    "required": ["type", "sequence_number"],
}
MESSAGE: Final = _typed(
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
)
GENERATE: Final[Json] = {"anyOf": [exactly({"text": TEXT}), answer(GENERATED), ERROR]}
