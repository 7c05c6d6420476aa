"""Validation of all requests before any model work. `fields` has the ranges of numbers.

Values already have the types that the contract declares, as frames are decoded that way; see
`checks.typed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from hearth.backends.contract import checks
from hearth.backends.contract.fields import MOST_TOP, REQUEST_FIELDS, Field
from hearth.backends.contract.requests import BeamSearch, Request
from hearth.backends.contract.sampling import (
    SAMPLING_FIELDS,
    SamplingParams,
    Speculate,
    SpeculateRule,
)
from hearth.backends.engine.validate_chat import validate_chat
from hearth.backends.errors import ConflictingParameters, InvalidParameter
from hearth.backends.text.output.rules import content_rule

MOST_STOPS: Final = 64
LONGEST_STOP_BYTES: Final = 1024
MOST_STOP_TOKENS: Final = 1024
MOST_BIASES: Final = 1024
MOST_BREAKERS: Final = 64
LONGEST_BREAKER_BYTES: Final = 256
LONGEST_SESSION_BYTES: Final = 256
MOST_TEXTS: Final = 2048
"""Maximum number of texts of one call for embeddings or ranks."""
_BIAS: Final = Field("logit_bias", "float", -100, 100, "")
_BEAM_WIDTH: Final = Field("beam_width", "int", 1, 16, "")
_LENGTH_PENALTY: Final = Field("length_penalty", "float", -10, 10, "")
_PENALTIES: Final = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
)
_TOP: Final = Field("top", "int", 0, MOST_TOP, "")


def validate(request: Request, vocab_size: int | None) -> str | None:
    """Check every field of `request` before any model work; returns the rule (`content_rule`) of
    its constraint, if it has one.

    Args:
        vocab_size: token ids must be below it; None if not known yet.

    Raises:
        InvalidParameter: `param` names the first field that has a wrong value.
        ConflictingParameters, LimitExceeded, UnknownToken: as their names say.
    """
    _check_prompt(request, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    for field in REQUEST_FIELDS:
        checks.check_number(field, getattr(request, field.name))
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise ConflictingParameters(
            "min_tokens",
            f"min_tokens ({request.min_tokens}) is larger than max_tokens ({request.max_tokens}).",
            "Lower min_tokens or raise max_tokens.",
        )
    if request.truncate_prompt_tokens == 0:
        raise InvalidParameter(
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is 0, which leaves nothing of the prompt.",
            "Choose 1 or more, or -1 for as many as fit.",
        )
    if request.beams is not None:
        _check_beams(request, request.beams)
    checks.check_strings("stop", request.stop, MOST_STOPS, LONGEST_STOP_BYTES)
    checks.check_count("stop_token_ids", request.stop_token_ids, MOST_STOP_TOKENS)
    checks.check_token_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    if request.speculate is not None:
        checks.check_one_of("speculate", request.speculate, get_args(Speculate))
    if request.speculate_rule is not None:
        checks.check_one_of("speculate_rule", request.speculate_rule, get_args(SpeculateRule))
    _check_session(request.session)
    if request.constraint is None:
        return None
    checks.check_text("constraint", request.constraint.source)
    return content_rule(request.constraint, "constraint")


def _check_beams(request: Request, beams: BeamSearch) -> None:
    checks.check_number(_BEAM_WIDTH, beams.width)
    checks.check_number(_LENGTH_PENALTY, beams.length_penalty)
    if request.n > beams.width:
        raise ConflictingParameters(
            "beam_width",
            f"beam_width is {beams.width}, and {request.n} answers (n) are asked for.",
            "Raise beam_width, or lower n.",
        )
    usual = SamplingParams()
    refused = {
        "constraint": request.constraint is not None,
        "tools": bool(request.tools),
        "attention_sinks": request.attention_sinks is not None,
        "speculate": request.speculate not in (None, "off", "auto"),
        "speculate_rule": request.speculate_rule is not None,
        **{name: getattr(request.sampling, name) != getattr(usual, name) for name in _PENALTIES},
    }
    for name, is_given in refused.items():
        if is_given:
            raise ConflictingParameters(
                name,
                f"{name} has no effect on beam search, which ranks answers by their log "
                "probability alone.",
                f"Leave out {name} or beam search.",
            )


def validate_score(ids: Sequence[int], session: str, vocab_size: int | None, top: int = 0) -> None:
    """Check a call for the log probabilities of `ids` and of the `top` likeliest tokens at each
    position; `vocab_size` as for `validate`.

    Raises:
        InvalidParameter: `param` names the parameter that has a wrong value.
    """
    checks.check_not_empty("token_ids", ids)
    checks.check_token_ids("token_ids", ids, vocab_size)
    if len(ids) < 2:
        raise InvalidParameter(
            "token_ids",
            "token_ids has one token; nothing comes before it that could make it likely or not.",
            "Send two tokens or more.",
        )
    checks.check_number(_TOP, top)
    _check_session(session)


def validate_embed(
    texts: Sequence[str | tuple[int, ...]], session: str, vocab_size: int | None = None
) -> None:
    """Check a call for embeddings of `texts`, each of which may be token ids; `vocab_size` as for
    `validate`.

    Raises:
        InvalidParameter: `param` names the parameter that has a wrong value.
    """
    checks.check_count("texts", texts, MOST_TEXTS)
    checks.check_not_empty("texts", texts)
    for index, text in enumerate(texts):
        checks.check_not_empty(f"texts[{index}]", text)
        if isinstance(text, str):
            checks.check_text(f"texts[{index}]", text)
        else:
            checks.check_token_ids(f"texts[{index}]", text, vocab_size)
    _check_session(session)


def validate_rank(query: str, texts: Sequence[str], session: str) -> None:
    """Check a call that ranks `texts` by how well they answer `query`.

    Raises:
        InvalidParameter: `param` names the parameter that has a wrong value.
    """
    checks.check_not_empty("query", query)
    checks.check_text("query", query)
    validate_embed(texts, session)


def _check_prompt(request: Request, vocab_size: int | None) -> None:
    given = [
        name for name in ("messages", "text", "token_ids") if getattr(request, name) is not None
    ]
    if len(given) != 1:
        given_names = " and ".join(given) or "none of them"
        raise InvalidParameter(
            given[1] if given else "messages",
            f"A request needs exactly one of messages, text and token_ids; it has {given_names}.",
            "Send one of the three.",
        )
    validate_chat(request)
    if request.text is not None:
        checks.check_text("text", request.text)
        if request.suffix is None:
            checks.check_not_empty("text", request.text)
    if request.suffix is not None:
        checks.check_text("suffix", request.suffix)
        if request.text is None:
            raise InvalidParameter(
                "suffix", "suffix is given without text.", "Send text, or leave suffix out."
            )
    if request.token_ids is not None:
        checks.check_not_empty("token_ids", request.token_ids)
        checks.check_token_ids("token_ids", request.token_ids, vocab_size)


def _check_sampling(params: SamplingParams, vocab_size: int | None) -> None:
    for field in SAMPLING_FIELDS:
        checks.check_number(field, getattr(params, field.name))
    checks.check_strings(
        "dry_sequence_breakers", params.dry_sequence_breakers, MOST_BREAKERS, LONGEST_BREAKER_BYTES
    )
    checks.check_count("logit_bias", params.logit_bias, MOST_BIASES)
    checks.check_token_ids("logit_bias", params.logit_bias, vocab_size)
    for value in params.logit_bias.values():
        checks.check_number(_BIAS, value)


def _check_session(session: str) -> None:
    checks.check_text("session", session, LONGEST_SESSION_BYTES)
