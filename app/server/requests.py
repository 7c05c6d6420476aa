"""What both kinds of completion share: from the fields of a body to a `contract.Request`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

from starlette.requests import HTTPConnection

from hearth.app.server.generation import Happenings
from hearth.app.settings import ModelUse
from hearth.backends.contract import Request, SamplingParams
from hearth.backends.engine.validate import validate
from hearth.backends.errors import InvalidParameter, UnsupportedParameter

_SAMPLING: Final = {field.name for field in fields(SamplingParams)} - {"logprobs"}
_LIMITS: Final = ("max_tokens", "min_tokens", "ignore_eos", "n", "priority")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How the answer is to be sent."""

    stream: bool = False
    include_usage: bool = False


def build(
    given: Mapping[str, Any], use: ModelUse, session: str, logprobs: int | None, **prompt: Any
) -> Request:
    """The request for `prompt` (`messages`, `text` or `token_ids`); what `given` does not say is as
    the model's settings have it.

    Raises:
        InvalidParameter: a value has a wrong type or lies outside of its range.
    """
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    if "seed" in sampling:
        sampling["seed"] = _seed(sampling["seed"])
    if "logit_bias" in sampling:
        sampling["logit_bias"] = _biases(sampling["logit_bias"])
    if "dry_sequence_breakers" in sampling:
        sampling["dry_sequence_breakers"] = _texts(sampling["dry_sequence_breakers"])
    limits = {name: given[name] for name in _LIMITS if name in given}
    limits.setdefault("max_tokens", use.max_tokens)
    request = Request(
        **prompt,
        sampling=replace(use.sampling, **cast(Any, {**sampling, "logprobs": logprobs})),
        stop=cast("tuple[str, ...]", _texts(given["stop"])) if "stop" in given else use.stop,
        session=session,
        **limits,
    )
    validate(request, None)
    return request


def session_of(given: Mapping[str, Any], connection: HTTPConnection) -> str:
    """Whom the request is for: `user`, else the client's address. Requests of one session take
    turns with those of others.
    """
    if "user" in given:
        if not isinstance(given["user"], str):
            raise InvalidParameter("user", "user must be text.", "Send text.")
        return f"http user {given['user']}"
    return f"http {connection.client.host if connection.client else ''}"


def stream_options(given: Mapping[str, Any]) -> StreamOptions:
    """How the answer is to be sent.

    Raises:
        InvalidParameter: a wrong type, an unknown option, or options without a stream.
    """
    stream = flag(given, "stream")
    options = given.get("stream_options")
    if options is None:
        return StreamOptions(stream)
    if not isinstance(options, dict):
        raise InvalidParameter("stream_options", "stream_options must be an object.")
    if not stream:
        raise InvalidParameter(
            "stream_options", "stream_options without stream.", "Set stream to true as well."
        )
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise InvalidParameter(
                f"stream_options.{name[:100]}", f'There is no stream option "{name[:100]}".'
            )
    if flag(options, "include_obfuscation", "stream_options."):
        raise UnsupportedParameter(
            "stream_options.include_obfuscation", "include_obfuscation is not possible here."
        )
    return StreamOptions(stream, flag(options, "include_usage", "stream_options."))


def flag(given: Mapping[str, Any], name: str, prefix: str = "") -> bool:
    """A boolean, false where it is absent or null. Raises `InvalidParameter` for anything else."""
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidParameter(prefix + name, f"{name} must be true or false.")
    return bool(value)


def renamed(error: InvalidParameter, names: Mapping[str, str]) -> InvalidParameter:
    """`error` as whoever asked knows the parameter: `names` from our names to theirs."""
    theirs = names.get(error.param)
    if theirs is None:
        return error
    message = error.message
    if message.startswith(error.param):
        message = theirs + message.removeprefix(error.param)
    data = {name: value for name, value in error.data.items() if name != "param"}
    return type(error)(theirs, message, error.hint, **data)


async def renaming(events: Happenings, names: Mapping[str, str]) -> Happenings:
    """`events`, and what they raise as `renamed` has it."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except InvalidParameter as error:
        raise renamed(error, names) from error


def _seed(seed: object) -> object:
    """OpenAI's seeds are signed; ours are the same 64 bits without a sign."""
    if isinstance(seed, int) and not isinstance(seed, bool) and -(2**63) <= seed < 0:
        return seed + 2**64
    return seed


def _texts(value: object) -> object:
    """One text or a list of them as a tuple; anything else is left to be refused."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _biases(value: object) -> object:
    """Token ids are texts in JSON; what is no table is left to be refused."""
    if not isinstance(value, dict):
        return value
    for token in value:
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise InvalidParameter(
                "logit_bias",
                f'logit_bias has "{token[:40]}", which is no token id.',
                "Send token ids, as texts, with a number each.",
            )
    return {int(token): bias for token, bias in value.items()}
