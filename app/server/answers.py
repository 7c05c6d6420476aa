"""Pieces that the answers of both kinds of completion have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hearth.app.server.generation import Tally
from hearth.backends.contract import TokenLogprob, ToolCall

_LEAST_LOGPROB: Final = -9999.0
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
            **rest,
        }


def usage_and_timings(tally: Tally) -> dict[str, Any]:
    """`usage` as OpenAI has it; `timings`, in seconds and tokens per second, of a lone request."""
    usage = tally.usage
    found: dict[str, Any] = {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
    }
    if len(tally.timings) == 1:
        found["timings"] = asdict(tally.timings[0])
    return found


def notices(tally: Tally) -> dict[str, Any]:
    """What the user should know, if there is anything: a field of our own."""
    return {"notices": list(tally.notices)} if tally.notices else {}


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A call as a message has it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


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
        "logprob": max(logprob, _LEAST_LOGPROB),
        "bytes": list(text.encode()) if known else None,
    }


def text_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/completions`; its first token is at character `offset`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, _LEAST_LOGPROB) for token in tokens],
        "top_logprobs": [
            {text: max(value, _LEAST_LOGPROB) for _, text, value in token.top} for token in tokens
        ],
        "text_offset": offsets,
    }
