"""JSON schemas of the 200 responses of `/api/...`, in Ollama's format."""

from __future__ import annotations

from typing import Final

from hearth.app.server.schema import Json
from hearth.app.server.tables.answers import (
    COUNT,
    LOGPROBS,
    NUMBER,
    OBJECT,
    OLLAMA_ERROR,
    TEXT,
    answer,
    exactly,
    many,
    one,
    or_null,
)

_ENDING: Final[Json] = dict.fromkeys(
    (
        *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
        *("eval_count", "eval_duration"),
    ),
    COUNT,
)


def _answer(**fields: Json) -> tuple[Json, Json]:
    """The complete answer, and one line of a stream."""
    head = {"model": TEXT, "created_at": TEXT, **fields}
    ended = {"done": one(True), "done_reason": one("stop", "length", "load", "unload")}
    more = {"thinking": TEXT, "logprobs": LOGPROBS["properties"]["content"]}
    whole = answer({**head, **ended}, {**_ENDING, **more})
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
EMBED: Final = answer(
    {
        "model": TEXT,
        "embeddings": many(many(NUMBER)),
        "total_duration": COUNT,
        "load_duration": COUNT,
        "prompt_eval_count": COUNT,
    }
)
EMBEDDINGS: Final = answer({"embedding": many(NUMBER)})
_DETAILS: Final = exactly(
    {
        **dict.fromkeys(
            ("parent_model", "format", "family", "parameter_size", "quantization_level"), TEXT
        ),
        "families": many(TEXT),
    }
)
SHOW: Final = answer(
    {
        "details": _DETAILS,
        "model_info": OBJECT,
        "capabilities": many(one("completion", "tools", "thinking", "insert", "embedding")),
        "modified_at": or_null(TEXT),
        "template": TEXT,
        "parameters": TEXT,
        "license": TEXT,
    }
)
_MODEL: Final[Json] = {
    "name": TEXT,
    "model": TEXT,
    "modified_at": or_null(TEXT),
    "size": COUNT,
    "digest": TEXT,
    "details": _DETAILS,
}
TAGS: Final = exactly({"models": many(exactly(_MODEL))})
PS: Final = exactly(
    {
        "models": many(
            exactly({**_MODEL, "expires_at": TEXT, "context_length": COUNT, "size_vram": COUNT})
        )
    }
)
VERSION: Final = exactly({"version": TEXT, "hearth": TEXT})
DONE: Final = answer({"status": one("success")})
PULL_LINE: Final = {
    "anyOf": [
        answer({"status": TEXT}, {"digest": TEXT, "total": COUNT, "completed": COUNT}),
        OLLAMA_ERROR,
    ]
}
NEVER: Final[Json] = {"not": {}}
"""The schema for URLs that always return an error."""
