"""Which values a request may carry: one table of fields, and the check that all requests pass.

The command line makes its flags from the table, the endpoint its schema and its documentation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from hearth.backends.contract import Message, Pooling, Request, Role, SamplingParams
from hearth.backends.errors import InvalidParameter

Kind = Literal["float", "int"]


@dataclass(frozen=True, slots=True)
class Field:
    """A number that people may set."""

    name: str
    kind: Kind
    minimum: float
    maximum: float
    help: str
    above_minimum: bool = False
    """The minimum itself is refused."""
    optional: bool = False
    """None is allowed and means: not set."""

    @property
    def interval(self) -> str:
        """The allowed values in mathematical notation, e.g. "(0, 1]"."""
        opening = "(" if self.above_minimum else "["
        return f"{opening}{_plain(self.minimum)}, {_plain(self.maximum)}]"


_MOST_TOKENS: Final = 2**31 - 1
MOST_STOPS: Final = 16
LONGEST_STOP_BYTES: Final = 256
MOST_BIASES: Final = 1024
LARGEST_BIAS: Final = 100.0
MOST_BREAKERS: Final = 64
LONGEST_BREAKER_BYTES: Final = 256
LONGEST_SESSION_BYTES: Final = 256
MOST_TEXTS: Final = 2048
"""Texts of one call for vectors."""

SAMPLING_FIELDS: Final = (
    Field("temperature", "float", 0, 10, "higher is more varied; 0 takes the likeliest token"),
    Field("top_k", "int", 0, _MOST_TOKENS, "keep the k likeliest tokens; 0 is off"),
    Field("top_p", "float", 0, 1, "keep the likeliest tokens that reach p; 1 is off", True),
    Field("min_p", "float", 0, 1, "drop tokens below this share of the likeliest; 0 is off"),
    Field("typical_p", "float", 0, 1, "keep the most typical tokens that reach p; 1 is off", True),
    Field("repetition_penalty", "float", 0, 10, "makes said tokens less likely; 1 is off", True),
    Field("repetition_window", "int", -1, _MOST_TOKENS, "tokens to look back; -1 all, 0 none"),
    Field("frequency_penalty", "float", -2, 2, "subtracted for each occurrence of a token"),
    Field("presence_penalty", "float", -2, 2, "subtracted once for a token that occurs"),
    Field("dry_multiplier", "float", 0, 100, "DRY: penalty for a repeated run; 0 is off"),
    Field("dry_base", "float", 1, 10, "DRY: growth of the penalty for each token of the run"),
    Field("dry_allowed_length", "int", 1, _MOST_TOKENS, "DRY: shorter runs are free"),
    Field("dry_window", "int", -1, _MOST_TOKENS, "DRY: tokens to look back; -1 all, 0 none"),
    Field("xtc_probability", "float", 0, 1, "XTC: chance to drop the top choices; 0 is off"),
    Field("xtc_threshold", "float", 0, 1, "XTC: probability that makes a token a top choice"),
    Field("seed", "int", 0, 2**64 - 1, "same seed, same text", optional=True),
    Field("logprobs", "int", 0, 20, "log probabilities of the n likeliest tokens", optional=True),
)
"""The numbers of `SamplingParams`."""

REQUEST_FIELDS: Final = (
    Field("max_tokens", "int", 1, _MOST_TOKENS, "at most this many new tokens", optional=True),
    Field("min_tokens", "int", 0, _MOST_TOKENS, "do not end before this many new tokens"),
    Field("n", "int", 1, 16, "answers to the same prompt"),
    Field("priority", "int", -100, 100, "higher goes first among those that wait"),
)
"""The numbers of `Request`."""


def validate(request: Request, vocab_size: int | None) -> None:
    """Check every field of `request`, before any model work.

    Args:
        vocab_size: token ids must be below it; None where it is not known yet.

    Raises:
        InvalidParameter: `param` names the first field that has a wrong type or value.
    """
    _check_prompt(request, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    for field in REQUEST_FIELDS:
        _check_number(field, getattr(request, field.name))
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidParameter(
            "min_tokens",
            f"min_tokens ({request.min_tokens}) is larger than max_tokens ({request.max_tokens}).",
            "Lower min_tokens or raise max_tokens.",
        )
    if type(request.ignore_eos) is not bool:
        raise _wrong_type("ignore_eos", "true or false", request.ignore_eos)
    _check_strings("stop", request.stop, MOST_STOPS, LONGEST_STOP_BYTES)
    _check_session(request.session)


def validate_score(ids: Sequence[int], session: str, vocab_size: int | None) -> None:
    """Check a call for the log probabilities of `ids`; `vocab_size` as for `validate`.

    Raises:
        InvalidParameter: `param` names what has a wrong type or value.
    """
    _check_token_ids(ids, vocab_size)
    if len(ids) < 2:
        raise InvalidParameter(
            "token_ids",
            "token_ids has one token; nothing comes before it that could make it likely or not.",
            "Send two tokens or more.",
        )
    _check_session(session)


def validate_embed(texts: Sequence[str], pooling: str, session: str) -> None:
    """Check a call for vectors of `texts`.

    Raises:
        InvalidParameter: `param` names what has a wrong type or value.
    """
    if not isinstance(texts, (tuple, list)):
        raise _wrong_type("texts", "a list of texts", texts)
    if not texts:
        raise _empty("texts")
    if len(texts) > MOST_TEXTS:
        raise InvalidParameter(
            "texts",
            f"texts has {len(texts):,} texts; at most {MOST_TEXTS:,} are possible.",
            "Send them in several calls.",
        )
    for index, text in enumerate(texts):
        if not _check_text(f"texts[{index}]", text):
            raise _empty(f"texts[{index}]")
    if pooling not in get_args(Pooling):
        raise InvalidParameter(
            "pooling",
            f"pooling is {pooling!r}, which is unknown.",
            f"Use one of {', '.join(get_args(Pooling))}.",
        )
    _check_session(session)


def _check_prompt(request: Request, vocab_size: int | None) -> None:
    given = [
        name for name in ("messages", "text", "token_ids") if getattr(request, name) is not None
    ]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidParameter(
            given[1] if given else "messages",
            f"A request needs exactly one of messages, text and token_ids; it has {found}.",
            "Send one of the three.",
        )
    if request.messages is not None:
        _check_messages(request.messages)
    if request.text is not None:
        _check_text("text", request.text)
        if not request.text:
            raise _empty("text")
    if request.token_ids is not None:
        _check_token_ids(request.token_ids, vocab_size)


def _check_messages(messages: tuple[Message, ...]) -> None:
    if not isinstance(messages, (tuple, list)):
        raise _wrong_type("messages", "a list of messages", messages)
    if not messages:
        raise _empty("messages")
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, Message):
            raise _wrong_type(param, "a message", message)
        if message.role not in get_args(Role):
            raise InvalidParameter(
                f"{param}.role",
                f"{param} has the role {message.role!r}, which is unknown.",
                f"Use one of {', '.join(get_args(Role))}.",
            )
        _check_text(f"{param}.content", message.content)


def _check_token_ids(token_ids: Sequence[int], vocab_size: int | None) -> None:
    if not isinstance(token_ids, (tuple, list)):
        raise _wrong_type("token_ids", "a list of token ids", token_ids)
    if not token_ids:
        raise _empty("token_ids")
    for token in token_ids:
        _check_token_id("token_ids", token, vocab_size)


def _check_sampling(params: SamplingParams, vocab_size: int | None) -> None:
    if not isinstance(params, SamplingParams):
        raise _wrong_type("sampling", "sampling parameters", params)
    for field in SAMPLING_FIELDS:
        _check_number(field, getattr(params, field.name))
    _check_strings(
        "dry_sequence_breakers", params.dry_sequence_breakers, MOST_BREAKERS, LONGEST_BREAKER_BYTES
    )
    bias = params.logit_bias
    if not isinstance(bias, dict):
        raise _wrong_type("logit_bias", "a table of token ids and numbers", bias)
    if len(bias) > MOST_BIASES:
        raise InvalidParameter(
            "logit_bias",
            f"logit_bias has {len(bias):,} tokens; at most {MOST_BIASES:,} are possible.",
            "Name fewer tokens.",
        )
    value_field = Field("logit_bias", "float", -LARGEST_BIAS, LARGEST_BIAS, "")
    for token, value in bias.items():
        _check_token_id("logit_bias", token, vocab_size)
        _check_number(value_field, value)


def _check_number(field: Field, value: object) -> None:
    if value is None and field.optional:
        return
    if field.kind == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong_type(field.name, "a whole number", value)
    elif not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong_type(field.name, "a number", value)
    too_low = value < field.minimum or (field.above_minimum and value == field.minimum)
    if too_low or value > field.maximum or math.isnan(value):
        raise InvalidParameter(
            field.name,
            f"{field.name} is {_plain(value)}, outside {field.interval}.",
            f"Choose a value in {field.interval}.",
        )


def _check_token_id(param: str, token: object, vocab_size: int | None) -> None:
    if not isinstance(token, int) or isinstance(token, bool):
        raise _wrong_type(param, "token ids (whole numbers)", token)
    if token < 0 or token >= (_MOST_TOKENS if vocab_size is None else vocab_size):
        size = "" if vocab_size is None else f" of {vocab_size:,} tokens"
        raise InvalidParameter(
            param,
            f"{param} has the token id {_plain(token)}, which is not in the vocabulary{size}.",
            "Use ids that this model's tokenizer gives.",
        )


def _check_strings(param: str, strings: Iterable[object], most: int, longest_bytes: int) -> None:
    if not isinstance(strings, (tuple, list)):
        raise _wrong_type(param, "a list of strings", strings)
    if len(strings) > most:
        raise InvalidParameter(
            param,
            f"{param} has {len(strings):,} strings; at most {most} are possible.",
            "Send fewer strings.",
        )
    for string in strings:
        size = len(_check_text(param, string))
        if not 1 <= size <= longest_bytes:
            raise InvalidParameter(
                param,
                f"{param} has a string of {size:,} bytes; each must have 1 to {longest_bytes}.",
                "Shorten the string, or leave out an empty one.",
            )


def _check_session(session: object) -> None:
    size = len(_check_text("session", session))
    if size > LONGEST_SESSION_BYTES:
        raise InvalidParameter(
            "session",
            f"session has {size:,} bytes; at most {LONGEST_SESSION_BYTES} are possible.",
            "Choose a shorter name.",
        )


def _check_text(param: str, text: object) -> bytes:
    """The UTF-8 of `text`."""
    if not isinstance(text, str):
        raise _wrong_type(param, "text", text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"{param} is not valid Unicode: a lone surrogate stands at character {error.start}.",
            "Send text that can be written as UTF-8.",
        ) from error


def _wrong_type(param: str, wanted: str, value: object) -> InvalidParameter:
    return InvalidParameter(
        param, f"{param} must be {wanted}, not {type(value).__name__}.", f"Send {wanted}."
    )


def _empty(param: str) -> InvalidParameter:
    return InvalidParameter(
        param, f"{param} is empty, so there is nothing to answer.", "Send some text."
    )


def _plain(value: float) -> str:
    """A number as people write it: 1, 0.5, -100; huge integers by their size."""
    if isinstance(value, int) and abs(value) > 2**64:
        return f"a whole number of {value.bit_length()} bits"
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)
