"""From the fields of a body to a `contract.Request`, for every kind of generation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, Final, cast

from starlette.requests import HTTPConnection

from hearth.app.chosen import Chosen
from hearth.app.server.generation import Happenings
from hearth.app.server.tables.chat import HIGHEST_EFFORT
from hearth.app.settings import ModelUse
from hearth.backends.contract import Constraint, Request, SamplingParams
from hearth.backends.engine.validate import validate
from hearth.backends.errors import (
    ConflictingParameters,
    HearthError,
    UnsupportedParameter,
    from_info,
    to_info,
)

_SAMPLING: Final = {field.name for field in fields(SamplingParams)} - {"logprobs"}
_LIMITS: Final = ("max_tokens", "min_tokens", "ignore_eos", "n", "priority")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How the answer is to be sent."""

    stream: bool = False
    include_usage: bool = False


def build(
    given: Mapping[str, Any], use: ModelUse, session: str, logprobs: int | None, **asked: Any
) -> Request:
    """The request for what is `asked` (`messages`, `text` or `token_ids`, and further fields of
    `Request`); what `given` does not say is as the model's settings have it.

    Raises:
        InvalidParameter: a value is out of its range, by the contract's name.
    """
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    if sampling.get("seed", 0) < 0:
        sampling["seed"] += 2**64  # OpenAI's seeds are signed; ours are the same 64 bits.
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(key): bias for key, bias in sampling["logit_bias"].items()}
    if "dry_sequence_breakers" in sampling:
        sampling["dry_sequence_breakers"] = tuple(sampling["dry_sequence_breakers"])
    wanted = {name: given[name] for name in _LIMITS if name in given}
    wanted.setdefault("max_tokens", use.max_tokens)
    request = Request(
        sampling=replace(use.sampling, **cast(Any, {**sampling, "logprobs": logprobs})),
        stop=_texts(given["stop"]) if "stop" in given else use.stop,
        session=session,
        reuse_prefix=given.get("cache_prompt", True),
        **{**wanted, **asked},
    )
    validate(request, None)
    return request


def session_of(given: Mapping[str, Any], connection: HTTPConnection) -> str:
    """Whom the request is for: `user`, else the client's address. Requests of one session take
    turns with those of others.
    """
    if "user" in given:
        return session_of_user(given["user"])
    return f"http {connection.client.host if connection.client else ''}"


def session_of_user(user: str) -> str:
    """The session of a client's `user`, which may be longer than names of sessions."""
    return f"http user {user if len(user.encode()) <= 200 else sha256(user.encode()).hexdigest()}"


def with_keep_alive(chosen: Chosen, given: Mapping[str, Any]) -> Chosen:
    """`chosen`, unloaded when `keep_alive` says so, if it does. Raises `UnsupportedParameter` for
    a model of another machine, which is not loaded here.
    """
    value = given.get("keep_alive")
    if value is None:
        return chosen
    if chosen.spec.backend == "remote":
        raise UnsupportedParameter(
            "keep_alive",
            f"keep_alive: {chosen.found.name} is a remote model, which its own server loads.",
            "Leave it out.",
        )
    settings = replace(chosen.spec.settings, keep_alive_s=_seconds(value))
    return replace(chosen, spec=replace(chosen.spec, settings=settings))


def _seconds(value: float | str) -> float:
    if not isinstance(value, str):
        return float(value)
    number, unit = re.fullmatch(r"(-?[0-9.]+)(ms|s|m|h)?", value).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS_S[unit or ""]


def stream_options(given: Mapping[str, Any]) -> StreamOptions:
    """How the answer is to be sent. Raises `ConflictingParameters`: usage of no stream."""
    stream = given.get("stream", False)
    options = given.get("stream_options")
    if (options or {}).get("include_usage") and not stream:
        raise ConflictingParameters(
            "stream_options", "stream_options without stream.", "Set stream to true as well."
        )
    return StreamOptions(stream, (options or {}).get("include_usage", False))


def known_effort(effort: str) -> str:
    """How much to think, in the words that chat templates know."""
    return HIGHEST_EFFORT if effort == "max" else effort


def constraint_of(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """What `response_format` asks for; None for free text."""
    match (response_format or {"type": "text"})["type"]:
        case "json_object":
            return Constraint("json")
        case "json_schema":
            schema = (response_format or {})["json_schema"]["schema"]
            return Constraint("json_schema", json.dumps(schema))
        case "regex":
            return Constraint("regex", (response_format or {})["regex"])
        case "choice":
            return Constraint("choice", json.dumps((response_format or {})["choices"]))
        case _:
            return None


def renamed(error: HearthError, names: Mapping[str, str]) -> HearthError:
    """`error` with the client's name of the parameter: `names` translates our names, each for
    itself and for everything in it; the longest that matches wins.
    """
    param = str(error.data.get("param", ""))
    matching = [name for name in names if re.match(rf"{re.escape(name)}(?![A-Za-z0-9_])", param)]
    if not matching:
        return error
    ours = max(matching, key=len)
    theirs = names[ours] + param.removeprefix(ours)
    info = to_info(error)
    if info.message.startswith(param):
        info = replace(info, message=theirs + info.message.removeprefix(param))
    return from_info(replace(info, data={**info.data, "param": theirs}))


async def renaming(events: Happenings, names: Mapping[str, str]) -> Happenings:
    """`events`, and what they raise as `renamed` has it."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except HearthError as error:
        raise renamed(error, names) from error


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
