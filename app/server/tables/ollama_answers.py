"""JSON schema of what `/api/...` answers with status 200, as Ollama has it."""

from __future__ import annotations

from typing import Final

from hearth.app.server.schema import Json
from hearth.app.server.tables.answers import (
    COUNT,
    NUMBER,
    OBJECT,
    OLLAMA_ERROR,
    TEXT,
    exactly,
    many,
    one,
    or_null,
    table_of,
)

_ENDING: Final[Json] = dict.fromkeys(
    (
        *("total_duration", "prompt_eval_count", "prompt_eval_duration"),
        *("eval_count", "eval_duration"),
    ),
    COUNT,
)


def _answer(**said: Json) -> tuple[Json, Json]:
    """The whole answer, and one line of a stream."""
    head = {"model": TEXT, "created_at": TEXT, **said}
    ended = {"done": one(True), "done_reason": one("stop", "length", "load", "unload")}
    more = {**_ENDING, "thinking": TEXT}
    whole = exactly({**head, **ended}, more)
    piece = exactly({**head, "done": one(False)}, more)
    return whole, {"anyOf": [whole, piece, OLLAMA_ERROR]}


_CALL: Final = exactly({"id": TEXT, "function": exactly({"name": TEXT, "arguments": OBJECT})})
CHAT, CHAT_LINE = _answer(
    message=exactly(
        {"role": one("assistant"), "content": TEXT},
        {"thinking": TEXT, "tool_calls": many(_CALL)},
    )
)
GENERATE, GENERATE_LINE = _answer(response=TEXT)
EMBED: Final = exactly(
    {"model": TEXT, "embeddings": many(many(NUMBER)), "prompt_eval_count": COUNT}
)
_DETAILS: Final = exactly(
    {
        **dict.fromkeys(("format", "family", "parameter_size", "quantization_level"), TEXT),
        "families": many(TEXT),
    }
)
SHOW: Final = exactly(
    {
        "details": _DETAILS,
        "model_info": table_of({}),
        "capabilities": many(TEXT),
        "modified_at": or_null(TEXT),
    }
)
_MODEL: Final[Json] = {
    "name": TEXT,
    "model": TEXT,
    "modified_at": or_null(TEXT),
    "size": COUNT,
    "details": _DETAILS,
}
TAGS: Final = exactly({"models": many(exactly(_MODEL))})
PS: Final = exactly(
    {
        "models": many(
            exactly({**_MODEL, "expires_at": TEXT, "context_length": COUNT}, {"size_vram": COUNT})
        )
    }
)
VERSION: Final = exactly({"version": TEXT})
