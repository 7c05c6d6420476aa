"""The tokens of a prompt, and how likely the model finds them: vLLM's `prompt_logprobs` and
`return_token_ids`.
"""

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
    """What is asked of a prompt; None: it was not asked for."""

    ids: list[int] | None = None
    logprobs: list[Json | None] | None = None

    def fields(self) -> Json:
        """The fields of an answer."""
        found: Json = {}
        if self.ids is not None:
            found["prompt_token_ids"] = self.ids
        if self.logprobs is not None:
            found["prompt_logprobs"] = self.logprobs
        return found


def check(given: Mapping[str, Any]) -> None:
    """Raises `ConflictingParameters`: log probabilities of a prompt, and a stream."""
    if "prompt_logprobs" in given and given.get("stream"):
        raise ConflictingParameters(
            "prompt_logprobs", "prompt_logprobs cannot be streamed.", "Leave stream out."
        )


def wanted(given: Mapping[str, Any]) -> bool:
    """Does `given` ask for the tokens of the prompt?"""
    return "prompt_logprobs" in given or bool(given.get("return_token_ids"))


async def read(backend: Backend, request: Request, given: Mapping[str, Any]) -> PromptTokens:
    """What `given` asks of the prompt of `request`. Renders it, and for log probabilities computes
    it.
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
    """By token id: the `top` likeliest, and the token of the prompt itself, whose rank is known
    only where it is among the likeliest.
    """
    ranked = {ident: rank for rank, (ident, _, _) in enumerate(token.top, 1)}
    found = {str(token.id): _candidate(token.text, token.logprob, ranked.get(token.id))}
    for ident, text, logprob in token.top[:top]:
        found[str(ident)] = _candidate(text, logprob, ranked[ident])
    return found


def _candidate(text: str, logprob: float, rank: int | None) -> Json:
    return {"logprob": max(logprob, LEAST_LOGPROB), "rank": rank, "decoded_token": text}
