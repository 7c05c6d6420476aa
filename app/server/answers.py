"""Pieces that the answers of both kinds of completion have in common."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import quote

from hearth.app.server.generation import Tally
from hearth.backends.contract import TokenLogprob, ToolCall, Usage
from hearth.backends.text.cut_json import read_json
from hearth.backends.version import hearth_version

_MOST_HEADER_BYTES: Final = 1024
_PLAIN: Final = " !#$&'()*+,-./:<=>?@[]^_`{|}~"
"""Characters of a notice that its header has as they are: no `%`, `;`, quotes or control codes."""
LEAST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON lacks, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one answer begin with."""

    kind: str
    prefix: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: secrets.token_hex(12))

    def body(self, **rest: Any) -> dict[str, Any]:
        """The object that `rest` is a part of."""
        return {
            "id": f"{self.prefix}-{self.token}",
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"hearth-{hearth_version()}",
            **rest,
        }


def openai_usage(usage: Usage) -> dict[str, Any]:
    """`usage` as OpenAI has it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def usage_and_timings(tally: Tally) -> dict[str, Any]:
    """`usage` as OpenAI has it; `timings`, in seconds and tokens per second, of a lone request."""
    found: dict[str, Any] = {"usage": openai_usage(tally.usage)}
    if len(tally.timings) == 1:
        found["timings"] = asdict(tally.timings[0])
    return found


def notices(texts: Collection[str]) -> dict[str, Any]:
    """What the client should know, if there is anything: a field of our own."""
    return {"notices": list(texts)} if texts else {}


def notices_header(texts: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """The header `Hearth-Notices`, if there is anything to say: the notices, percent-encoded,
    separated by semicolons; those that would make it longer than 1 KiB are left out.
    """
    value = ""
    for text in texts:
        longer = f"{value}; {quote(text, safe=_PLAIN)}" if value else quote(text, safe=_PLAIN)
        if len(longer) > _MOST_HEADER_BYTES:
            break
        value = longer
    return [(b"hearth-notices", value.encode("ascii"))] if value else []


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A call as a message has it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def arguments(text: str) -> dict[str, Any]:
    """The object that a call's arguments write; of a call that was cut, as much as there is. What
    Python reads and JSON or UTF-8 lack (infinite numbers, lone surrogates) is given as strings.
    """
    try:
        value = _plain(read_json(text or "{}", parse_constant=str, parse_float=_number))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    return value


def reasoning(text: str) -> dict[str, Any]:
    """Both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
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
    # A token that is part of a character has no text of its own; its bytes are unknown here.
    known = "\ufffd" not in text
    return {
        "token": text,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(text.encode()) if known else None,
    }


def text_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/completions`; its first token is at character `offset`, which
    is negative where it stands before the text.
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
    """By text, the likeliest first; it is the one that is told where two have the same text."""
    found: dict[str, float] = {}
    for _, text, value in token.top:
        found.setdefault(text, max(value, LEAST_LOGPROB))
    return found
