"""`POST /v1/embeddings` and `POST /v1/rerank`."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from math import sqrt
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hearth.app.server.exchange import Exchange
from hearth.app.server.tables.text import EMBEDDINGS, RERANK
from hearth.backends.errors import UnsupportedParameter


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
    """The first `dimensions` numbers, normalized to length 1 (arXiv 2205.13147); None: all numbers,
    as they are.

    Raises:
        UnsupportedParameter: the vector has fewer.
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
    """Little-endian float32 values, as OpenAI's clients decode them."""
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
