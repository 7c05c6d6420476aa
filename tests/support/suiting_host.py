"""A host without processes that validates requests as a worker does, and gives each a suitable
answer: calls where tools are required, JSON where a schema is, every choice, and reasoning where it
is requested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fake_host import FIRST_CHARACTER, PROMPT_TOKENS, FakeBackend, FakeHost
from hearth.backends.contract.checks import check_token_ids
from hearth.backends.contract.requests import Request
from hearth.backends.engine.validate import (
    validate,
    validate_embed,
    validate_rank,
    validate_score,
)
from hearth.backends.errors import HearthError, to_info

VOCAB = FIRST_CHARACTER + 0x11_0000
Step = dict[str, Any]


class SuitingHost(FakeHost):
    """Replaces `HostClient`, without a script."""

    def backend(self, spec, session=""):
        self.specs = [asdict(spec)]
        return _Backend(self, spec)

    def next_answer(self, request: Request) -> list[Step]:
        self.requests = [asdict(request)]
        try:
            validate(request, VOCAB)
        except HearthError as error:
            info = to_info(error)
            return [{"error": {"code": info.code, "message": info.message, "data": info.data}}]
        return [
            {"prompt_tokens": PROMPT_TOKENS, "cached_tokens": 3, "notices": ["a notice"]},
            {"progress": [3, PROMPT_TOKENS]},
            *_answer(request),
        ]


class _Backend(FakeBackend):
    async def score(self, ids, *, top=0, session=""):
        validate_score(ids, session, VOCAB, top)
        self._host.note("session", session)
        return await super().score(ids, top=top)

    async def embed(self, texts, *, pooling="model", session="", truncate=False):
        validate_embed(texts, session, VOCAB)
        self._host.note("session", session)
        return await super().embed(texts, pooling=pooling)

    async def rank(self, query, texts, *, session=""):
        validate_rank(query, texts, session)
        self._host.note("session", session)
        return await super().rank(query, texts)

    async def render(self, request):
        validate(request, VOCAB)
        return await super().render(request)

    async def detokenize(self, ids):
        check_token_ids("ids", ids, VOCAB)
        return (await super().detokenize(ids)).encode("utf-8", "replace").decode()


def _answer(request: Request) -> Iterator[Step]:
    reason = "stop"
    for index in range(request.n):
        values = request.template_values
        thinks = values.get("enable_thinking") or values.get("reasoning_effort", "none") != "none"
        if thinks:
            yield {"reasoning": "Well.", "index": index}
        if request.tool_choice != "required":
            text = _text(request)
            yield {"text": text[:1], "index": index}
            yield {"text": text[1:], "index": index}
        if request.tools and request.tool_choice != "none":
            name = request.forced_tool or request.tools[0].name
            call = {"position": 0, "id": f"call_{index}", "name": name, "arguments": "{}"}
            yield {"call": call, "index": index}
            reason = "tool_calls"
        if request.n > 1:
            yield {"finish": reason, "index": index}
    yield {"finish": reason, "kept_tokens": 2 * any(m.keep_s for m in request.messages or ())}


def _text(request: Request) -> str:
    constraint = request.constraint
    if constraint is None:
        return "Hello."
    if constraint.kind == "choice":
        return str(json.loads(constraint.source)[0])
    return "x" if constraint.kind == "regex" else "{}"
