"""Parts of responses that several endpoints share: notices, tool calls, logprobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from hearth.app.answer import Answer
from hearth.app.server.body import without_surrogates
from hearth.backends.contract.events import TokenLogprob
from hearth.backends.contract.messages import ToolCall
from hearth.backends.text.cut_json import read_json

_MOST_HEADER_BYTES: Final = 1024
_PLAIN: Final = " !#$&'()*+,-./:<=>?@[]^_`{|}~"
"""Characters of a notice that are not percent-encoded in its header."""
LEAST_LOGPROB: Final = -9999.0
"""Represents minus infinity, which JSON cannot express, as in OpenAI's API."""


def all_notices(made: Iterable[Answer]) -> list[str]:
    """The notices of all answers, each once."""
    return list(dict.fromkeys(notice for answer in made for notice in answer.notices))


def notices(texts: Collection[str]) -> dict[str, Any]:
    """The field `notices`, an extension of the APIs; empty if there are none."""
    return {"notices": list(texts)} if texts else {}


def notices_header(texts: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """The header `Hearth-Notices`: the notices, percent-encoded and separated by semicolons, up to
    1 KiB; none if there are no notices.
    """
    value = ""
    for text in texts:
        longer = f"{value}; {quote(text, safe=_PLAIN)}" if value else quote(text, safe=_PLAIN)
        if len(longer) > _MOST_HEADER_BYTES:
            break
        value = longer
    return [(b"hearth-notices", value.encode("ascii"))] if value else []


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A tool call in the format of OpenAI's messages."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def arguments(text: str) -> dict[str, Any]:
    """The object in a tool call's arguments, as far as it is complete.

    Infinite numbers become strings, and lone surrogates are replaced, because JSON and UTF-8
    cannot express them.
    """
    try:
        value = without_surrogates(read_json(text or "{}", parse_constant=str, parse_float=_number))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def reasoning(text: str) -> dict[str, Any]:
    """The reasoning under both names that clients use."""
    return {"reasoning_content": text, "reasoning": text}


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/chat/completions`."""
    return {
        "content": [
            {
                **_chat_token(token.text, token.logprob),
                "top_logprobs": [_chat_token(text, value) for _, text, value in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_token(text: str, logprob: float) -> dict[str, Any]:
    # A token that is part of a character decodes to U+FFFD, so its bytes are unknown.
    known = "\ufffd" not in text
    return {
        "token": text,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(text.encode()) if known else None,
    }


def text_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/completions`.

    Args:
        offset: position of the first token in characters; negative if it precedes the text.
    """
    offsets = []
    for token in tokens:
        offsets.append(max(0, offset))
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, LEAST_LOGPROB) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": offsets,
    }


def _likeliest(token: TokenLogprob) -> dict[str, float]:
    """Logprobs by text, likeliest first; for tokens with the same text, the highest one."""
    by_text: dict[str, float] = {}
    for _, text, value in token.top:
        by_text.setdefault(text, max(value, LEAST_LOGPROB))
    return by_text
