"""Converts the fields of a body to a `contract.Request`; shared by all generation endpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any, Final, cast

from starlette.requests import HTTPConnection

from hearth.app.chosen import Chosen
from hearth.app.server.body import client_of
from hearth.app.server.tables.chat import HIGHEST_EFFORT
from hearth.app.settings import ModelUse
from hearth.backends.contract.requests import Constraint, Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.validate import validate
from hearth.backends.errors import (
    ConflictingParameters,
    HearthError,
    UnsupportedParameter,
    from_info,
    to_info,
)

_SAMPLING: Final = {field.name for field in fields(SamplingParams)} - {"logprobs"}
_AS_GIVEN: Final = (
    *("max_tokens", "min_tokens", "ignore_eos", "n", "priority"),
    *("skip_special_tokens", "truncate_prompt_tokens", "add_generation_prompt", "speculate"),
    *("attention_sinks", "speculate_rule"),
)
"""Fields of `Request` that have the same names in bodies."""
_LIKELIEST_ONLY: Final = 1e-9
"""Replaces a `top_p` of 0: here it must be positive, and the likeliest token alone exceeds this."""
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def build(
    given: Mapping[str, Any], use: ModelUse, session: str, logprobs: int | None, **fields: Any
) -> Request:
    """The request with `fields` (`messages`, `text` or `token_ids`, and others of `Request`).

    The other values come from `given`, or from the model's settings if `given` lacks them.

    Raises:
        InvalidParameter: a value is out of range; the error has the contract's name.
    """
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    if (sampling.get("seed") or 0) < 0:
        sampling["seed"] += 2**64  # OpenAI's seeds are signed; ours are the same 64 bits.
    if sampling.get("top_p") == 0:
        sampling["top_p"] = _LIKELIEST_ONLY
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(key): bias for key, bias in sampling["logit_bias"].items()}
    if "dry_sequence_breakers" in sampling:
        sampling["dry_sequence_breakers"] = tuple(sampling["dry_sequence_breakers"])
    wanted = {name: given[name] for name in _AS_GIVEN if name in given}
    wanted.setdefault("max_tokens", use.max_tokens)
    wanted.setdefault("attention_sinks", use.attention_sinks)
    request = Request(
        sampling=replace(use.sampling, **cast(Any, {**sampling, "logprobs": logprobs})),
        stop=_strings(given["stop"]) if "stop" in given else use.stop,
        stop_token_ids=tuple(given.get("stop_token_ids", ())),
        include_stop=given.get("include_stop_str_in_output", False),
        session=session,
        reuse_prefix=given.get("cache_prompt", True),
        **{**wanted, **fields},
    )
    validate(request, None)
    return request


def session_of(given: Mapping[str, Any], connection: HTTPConnection) -> str:
    """The identity behind a request: `user`, else `body.client_of`.

    Admission is fair between sessions, and one session holds at most half of the slots while
    another waits.
    """
    return session_of_user(given["user"]) if "user" in given else client_of(connection)


def session_of_user(user: str) -> str:
    """The session of a client's `user`; long values are hashed, as session names are limited."""
    return f"http user {user if len(user.encode()) <= 200 else sha256(user.encode()).hexdigest()}"


def with_keep_alive(chosen: Chosen, given: Mapping[str, Any]) -> Chosen:
    """`chosen` with the `keep_alive` of the body, if any.

    Raises `UnsupportedParameter` for a remote model, which another server loads.
    """
    value = given.get("keep_alive")
    if value is None:
        return chosen
    if chosen.spec.backend == "remote":
        raise UnsupportedParameter(
            "keep_alive",
            f"keep_alive has no effect on {chosen.found.name}, which another server loads.",
            "Leave it out.",
        )
    settings = replace(chosen.spec.settings, keep_alive_s=_seconds(value))
    return replace(chosen, spec=replace(chosen.spec, settings=settings))


def _seconds(value: float | str) -> float:
    if not isinstance(value, str):
        return float(value)
    parts = re.findall(r"([0-9.]+)(ms|s|m|h)?", value)
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    return -seconds if value.startswith("-") else seconds


def logprobs_of(given: Mapping[str, Any]) -> int | None:
    """Number of alternatives requested for each token; None: no log probabilities.

    Raises:
        ConflictingParameters: `top_logprobs` without `logprobs`.
    """
    if given.get("logprobs"):
        return int(given.get("top_logprobs", 0))
    if given.get("top_logprobs"):
        raise ConflictingParameters(
            "top_logprobs", "top_logprobs requires logprobs.", "Set logprobs to true too."
        )
    return None


def known_effort(effort: str) -> str:
    """The reasoning effort under the name that chat templates use."""
    return HIGHEST_EFFORT if effort == "max" else effort


def constraint_of(given: Mapping[str, Any]) -> tuple[Constraint | None, str]:
    """The constraint on the answer (None: free text), and the field that sets it.

    Raises:
        ConflictingParameters: several fields set a constraint, or one lacks its schema.
    """
    constraints = dict(_constraints(given))
    if len(set(constraints.values())) > 1:
        raise ConflictingParameters(
            list(constraints)[1],
            f"{' and '.join(constraints)} each constrain the answer.",
            "Send only one of them.",
        )
    for place, constraint in constraints.items():
        return constraint, place
    return None, "response_format"


def _constraints(given: Mapping[str, Any]) -> Iterator[tuple[str, Constraint]]:
    wanted = given.get("response_format", {"type": "text"})
    match wanted["type"]:
        case "json_object" | "json_schema":
            yield "response_format", json_constraint(_schema_of(wanted))
        case "choice":
            yield "response_format", Constraint("choice", json.dumps(wanted["choices"]))
        case "regex" | "grammar" as kind:
            yield "response_format", Constraint(kind, wanted[kind])
    outputs = {
        **{f"structured_outputs.{k}": v for k, v in given.get("structured_outputs", {}).items()},
        **{name: given[name] for name in _GUIDED if name in given},
    }
    for place, value in outputs.items():
        match _GUIDED.get(place, place.rpartition(".")[2]):
            case "json":
                yield place, json_constraint(value)
            case "json_object":
                if value:
                    yield place, Constraint("json")
            case "choice":
                yield place, Constraint("choice", json.dumps(value))
            case "regex" | "grammar" as kind:
                yield place, Constraint(kind, value)


_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}
"""Top-level fields, and the field of `structured_outputs` that each corresponds to."""


def _schema_of(wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    inner = wanted.get("json_schema", {}).get("schema")
    schema: Mapping[str, Any] | None = inner if inner is not None else wanted.get("schema")
    if schema is None and wanted["type"] == "json_schema":
        raise ConflictingParameters(
            "response_format.json_schema",
            "response_format of type json_schema has no json_schema.",
            'Add "json_schema": {"name": ..., "schema": ...}.',
        )
    return schema


def json_constraint(schema: Mapping[str, Any] | None) -> Constraint:
    """JSON that follows `schema`; None: any JSON object."""
    return Constraint("json") if schema is None else Constraint("json_schema", json.dumps(schema))


def renamed(error: HearthError, names: Mapping[str, str]) -> HearthError:
    """`error` with the client's name of the parameter.

    Args:
        names: the client's names by the contract's. Each also applies to paths below it; the
            longest match is used.
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


def _strings(value: str | list[str]) -> tuple[str, ...]:
    """The strings of `value` that are not empty."""
    return tuple(filter(None, (value,) if isinstance(value, str) else value))
