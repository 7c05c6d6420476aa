"""`POST /tokenize`, `/detokenize` and `/apply-template`."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server.exchange import Exchange
from hearth.app.server.leaving import all_of
from hearth.app.server.messages import continues_last, read_messages, read_tools
from hearth.app.server.requests import build
from hearth.app.server.tables.text import APPLY_TEMPLATE, DETOKENIZE, TOKENIZE
from hearth.backends.contract import Prompt
from hearth.backends.errors import ConflictingParameters

_NAMES: Final = {
    "template_values": "chat_template_kwargs",
    "continue_last": "continue_final_message",
}


async def tokenize(http: HttpRequest) -> Response:
    """The token ids of a text, or of the prompt of a conversation."""
    exchange = await Exchange.open(http, TOKENIZE, _NAMES)
    given = exchange.given
    backend = await exchange.backend()
    if ("content" in given) == ("messages" in given):
        raise ConflictingParameters(
            "content", "Exactly one of content and messages is required.", "Send one of them."
        )
    if "messages" in given:
        ids = list((await exchange.attend(_render(exchange))).ids)
    else:
        special, add = given.get("parse_special", True), given.get("add_special", False)
        tokenizing = backend.tokenize(given["content"], special=special, add_special=add)
        ids = await exchange.attend(tokenizing)
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids)}
    if given.get("with_pieces") or given.get("return_token_strs"):
        pieces = await exchange.attend(_pieces(backend.detokenize, ids))
        if given.get("with_pieces"):
            pairs = zip(ids, pieces, strict=True)
            answer["tokens"] = [{"id": ident, "piece": piece} for ident, piece in pairs]
        if given.get("return_token_strs"):
            answer["token_strs"] = pieces
    return exchange.answer(answer)


async def _pieces(detokenize: Any, ids: list[int]) -> list[str]:
    """The text of each token; every distinct token is detokenized once, 16 at a time."""
    unique = sorted(set(ids))
    known: dict[int, str] = {}
    for start in range(0, len(unique), 16):
        few = unique[start : start + 16]
        texts = await all_of(lambda ident: detokenize([ident]), few, len(few))
        known.update(zip(few, texts, strict=True))
    return [known[ident] for ident in ids]


async def detokenize(http: HttpRequest) -> Response:
    """The text of token ids, including special tokens."""
    exchange = await Exchange.open(http, DETOKENIZE, {"token_ids": "tokens", "ids": "tokens"})
    tokens = exchange.given["tokens"]
    backend = await exchange.backend()
    text = await exchange.attend(backend.detokenize(tokens)) if tokens else ""
    return exchange.answer({"content": text, "prompt": text})


async def apply_template(http: HttpRequest) -> Response:
    """The prompt that the model would get for a conversation, and its number of tokens."""
    exchange = await Exchange.open(http, APPLY_TEMPLATE, _NAMES)
    prompt = await exchange.attend(_render(exchange))
    notices = [*exchange.notices, *prompt.notices]
    return JSONResponse({"prompt": prompt.text, "count": len(prompt.ids), "notices": notices})


async def _render(exchange: Exchange) -> Prompt:
    given = exchange.given
    messages = read_messages(given["messages"], exchange.chosen.use.system)
    request = build(
        given,
        exchange.chosen.use,
        exchange.session,
        None,
        messages=messages,
        tools=read_tools(given)["tools"],
        template_values=given.get("chat_template_kwargs", {}),
        continue_last=continues_last(given, messages),
    )
    return await (await exchange.backend()).render(request)
