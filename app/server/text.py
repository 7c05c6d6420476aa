"""Endpoints that process text and generate none.

`/v1/embeddings`, `/v1/rerank`, `/tokenize`, `/detokenize` and `/apply-template`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hearth.app.server.chat import read_request
from hearth.app.server.exchange import Exchange
from hearth.app.server.tables.text import APPLY_TEMPLATE, DETOKENIZE, EMBEDDINGS, RERANK, TOKENIZE
from hearth.app.tasks import all_of
from hearth.backends.contract.events import Prompt
from hearth.backends.errors import ConflictingParameters, UnsupportedParameter

_NAMES: Final = {
    "template_values": "chat_template_kwargs",
    "continue_last": "continue_final_message",
}
_OF_TEXTS: Final = {"parse_special": True, "add_special": False}
_OF_CHATS: Final = {
    "tools": [],
    "parallel_tool_calls": True,
    "chat_template_kwargs": {},
    "add_generation_prompt": False,
    "continue_final_message": False,
}
"""Fields that only the form of `/tokenize` for conversations has, and their neutral values.

`_OF_TEXTS` has those of the form for texts.
"""


async def create_embedding(http: HttpRequest) -> Response:
    """One vector for each text or array of token ids.

    Raises:
        HearthError: the request is refused, or the model cannot embed.
    """
    exchange = await Exchange.open(http, EMBEDDINGS, {"texts": "input"})
    given = exchange.given
    texts = given["input"]
    if isinstance(texts, str) or isinstance(texts[0], int):
        exchange.names["texts[0]"] = "input"
        texts = [texts]
    backend = await exchange.backend()
    pooling = given.get("pooling", "model")
    inputs = [text if isinstance(text, str) else tuple(text) for text in texts]
    embedding = backend.embed(inputs, pooling=pooling, session=exchange.session)
    result = await exchange.attend(exchange.measured(embedding))
    vectors = [shortened(vector, given.get("dimensions")) for vector in result.vectors]
    coded = given.get("encoding_format") == "base64"
    usage = {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens}
    return exchange.answer(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _base64(vector) if coded else vector,
                }
                for index, vector in enumerate(vectors)
            ],
            "model": exchange.model,
            "usage": usage,
        }
    )


def shortened(vector: Sequence[float], dimensions: int | None) -> list[float]:
    """The first `dimensions` numbers, normalized to length 1 (arXiv 2205.13147).

    If `dimensions` is None, all numbers unchanged.

    Raises:
        UnsupportedParameter: the vector has fewer numbers.
    """
    if dimensions is None:
        return list(vector)
    if dimensions > len(vector):
        raise UnsupportedParameter(
            "dimensions",
            f"dimensions is {dimensions:,}; the vectors of this model have {len(vector):,}.",
            f"Send {len(vector):,} or less.",
        )
    first = list(vector[:dimensions])
    length = sqrt(sum(number * number for number in first))
    return [number / length for number in first] if length else first


def _base64(vector: list[float]) -> str:
    """`vector` as little-endian float32 values in base64, as OpenAI's clients decode it."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def rerank(http: HttpRequest) -> Response:
    """The documents by relevance to the query, most relevant first, with the model's raw scores.

    Raises:
        HearthError: the request is refused, or the model is not a reranker.
    """
    exchange = await Exchange.open(http, RERANK, {"texts": "documents"})
    given = exchange.given
    texts = [item if isinstance(item, str) else item["text"] for item in given["documents"]]
    backend = await exchange.backend()
    ranking = backend.rank(given["query"], texts, session=exchange.session)
    ranks = await exchange.attend(exchange.measured(ranking))
    best = sorted(range(len(texts)), key=lambda index: -ranks.scores[index])
    results: list[dict[str, Any]] = []
    for index in best[: given.get("top_n")]:
        result: dict[str, Any] = {"index": index, "relevance_score": ranks.scores[index]}
        if given.get("return_documents"):
            result["document"] = {"text": texts[index]}
        results.append(result)
    usage = {"prompt_tokens": ranks.prompt_tokens, "total_tokens": ranks.prompt_tokens}
    return exchange.answer(
        {"object": "list", "model": exchange.model, "results": results, "usage": usage}
    )


async def tokenize(http: HttpRequest) -> Response:
    """The token ids of a text, or of the prompt of a conversation."""
    exchange = await Exchange.open(http, TOKENIZE, _NAMES)
    given = exchange.given
    backend = await exchange.backend()
    if ("content" in given) == ("messages" in given):
        raise ConflictingParameters(
            "content", "Exactly one of content and messages is required.", "Send one of them."
        )
    _check_form(given)
    more: tuple[str, ...] = ()
    if "messages" in given:
        prompt = await exchange.attend(_render(exchange))
        ids, more = list(prompt.ids), prompt.notices
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
    return exchange.answer(answer, more)


def _check_form(given: Mapping[str, Any]) -> None:
    """Raises `ConflictingParameters` if a field of the other form has a value that is not neutral.

    A text has no template, and the template of a conversation decides about special tokens.
    """
    form, fields = ("messages", _OF_TEXTS) if "messages" in given else ("content", _OF_CHATS)
    for name, neutral in fields.items():
        if given.get(name, neutral) != neutral:
            raise ConflictingParameters(
                name, f"{name} cannot be combined with {form}.", "Leave it out."
            )


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
    answer = {"prompt": prompt.text, "count": len(prompt.ids), "notices": []}
    return exchange.answer(answer, prompt.notices)


async def _render(exchange: Exchange) -> Prompt:
    request = read_request(exchange)
    return await (await exchange.backend()).render(request)
