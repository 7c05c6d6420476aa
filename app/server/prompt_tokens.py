"""vLLM's `prompt_logprobs` and `return_token_ids`: token ids and log probabilities of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hearth.app.server.answers import LEAST_LOGPROB
from hearth.backends.contract import Backend, Request, TokenLogprob
from hearth.backends.errors import ConflictingParameters

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Token ids and log probabilities of a prompt; None: not requested."""

    ids: list[int] | None = None
    logprobs: list[Json | None] | None = None

    def fields(self) -> Json:
        """The fields of a response."""
        fields: Json = {}
        if self.ids is not None:
            fields["prompt_token_ids"] = self.ids
        if self.logprobs is not None:
            fields["prompt_logprobs"] = self.logprobs
        return fields


def check(given: Mapping[str, Any]) -> None:
    """Raises `ConflictingParameters` for `prompt_logprobs` with `stream`."""
    if "prompt_logprobs" in given and given.get("stream"):
        raise ConflictingParameters(
            "prompt_logprobs", "prompt_logprobs cannot be streamed.", "Leave stream out."
        )


def wanted(given: Mapping[str, Any]) -> bool:
    """Whether `given` requests properties of the prompt's tokens."""
    return "prompt_logprobs" in given or bool(given.get("return_token_ids"))


async def read(backend: Backend, request: Request, given: Mapping[str, Any]) -> PromptTokens:
    """What `given` requests for the prompt of `request`, which is rendered, and computed if log
    probabilities are requested.
    """
    if not wanted(given):
        return PromptTokens()
    top = given.get("prompt_logprobs")
    wants_ids = given.get("return_token_ids", False)
    ids = list((await backend.render(request)).ids)
    if top is None:
        return PromptTokens(ids)
    scored: list[Json | None] = [None]
    if len(ids) > 1:
        scores = await backend.score(tuple(ids), top=max(1, top), session=request.session)
        scored += [_candidates(token, top) for token in scores.tokens]
    return PromptTokens(ids if wants_ids else None, scored)


def _candidates(token: TokenLogprob, top: int) -> Json:
    """By token id: the `top` likeliest tokens, and the token of the prompt, whose rank is known
    only if it is among them.
    """
    ranked = {ident: rank for rank, (ident, _, _) in enumerate(token.top, 1)}
    candidates = {str(token.id): _candidate(token.text, token.logprob, ranked.get(token.id))}
    for ident, text, logprob in token.top[:top]:
        candidates[str(ident)] = _candidate(text, logprob, ranked[ident])
    return candidates


def _candidate(text: str, logprob: float, rank: int | None) -> Json:
    return {"logprob": max(logprob, LEAST_LOGPROB), "rank": rank, "decoded_token": text}
