"""`POST /tokenize`, `/detokenize` and `/apply-template`: texts, token ids and prompts."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server.exchange import Exchange
from hearth.app.server.leaving import all_of
from hearth.app.server.messages import read_messages, read_tools
from hearth.app.server.requests import build
from hearth.app.server.tables.text import APPLY_TEMPLATE, DETOKENIZE, TOKENIZE


async def tokenize(http: HttpRequest) -> Response:
    """The token ids of a text, without those that a prompt begins with."""
    exchange = await Exchange.open(http, TOKENIZE)
    given = exchange.given
    backend = await exchange.backend()
    special = given.get("parse_special", True)
    ids = await exchange.attend(backend.tokenize(given["content"], special=special))
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids)}
    if given.get("with_pieces"):
        pieces = await exchange.attend(_pieces(backend.detokenize, ids))
        answer["tokens"] = [
            {"id": ident, "piece": piece} for ident, piece in zip(ids, pieces, strict=True)
        ]
    return JSONResponse(answer)


async def _pieces(detokenize: Any, ids: list[int]) -> list[str]:
    """The text of each token; asked for once each, a part of them at a time."""
    unique = sorted(set(ids))
    known: dict[int, str] = {}
    for start in range(0, len(unique), 16):
        few = unique[start : start + 16]
        texts = await all_of(lambda ident: detokenize([ident]), few, len(few))
        known.update(zip(few, texts, strict=True))
    return [known[ident] for ident in ids]


async def detokenize(http: HttpRequest) -> Response:
    """The text of token ids, special tokens written out."""
    exchange = await Exchange.open(http, DETOKENIZE, {"token_ids": "tokens", "ids": "tokens"})
    tokens = exchange.given["tokens"]
    backend = await exchange.backend()
    text = await exchange.attend(backend.detokenize(tokens)) if tokens else ""
    return JSONResponse({"content": text})


async def apply_template(http: HttpRequest) -> Response:
    """The prompt that the model would get for a conversation, and how many tokens it has."""
    names = {
        "template_values": "chat_template_kwargs",
        "continue_last": "continue_final_message",
    }
    exchange = await Exchange.open(http, APPLY_TEMPLATE, names)
    given = exchange.given
    messages = read_messages(given["messages"], exchange.chosen.use.system)
    begun = messages[-1].role == "assistant" and not messages[-1].tool_calls
    with exchange.in_their_words():
        request = build(
            given,
            exchange.chosen.use,
            exchange.session,
            None,
            messages=messages,
            tools=read_tools(given).tools,
            template_values=given.get("chat_template_kwargs", {}),
            continue_last=given.get("continue_final_message", begun),
        )
    prompt = await exchange.attend((await exchange.backend()).render(request))
    return JSONResponse(
        {"prompt": prompt.text, "count": len(prompt.ids), "notices": list(prompt.notices)}
    )
