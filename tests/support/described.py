"""Requests that schemathesis generates from the server's OpenAPI description, and the requirements
for every answer.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from asgi import streaming
from hearth.app.server.openapi import BEYOND_SCHEMAS

HOST = "testserver"
"""Host name in schemathesis's requests."""
SECONDS_A_CASE = 10.0
_OF_THE_MODEL = ("dimensions",)
"""Fields with values that only another model can honour."""
_MANAGING = {"POST /api/pull", "DELETE /api/delete", "POST /api/copy"}
"""Operations that are refused where clients may not manage models."""
_REQUIRED = {"model", "messages", "prompt", "prompts", "input", "tokens", "documents", "query"}
_MODES = tuple(GenerationMode)
_CHECKS: dict[str, Any] = {
    "max_response_time": SECONDS_A_CASE,
    "positive_data_acceptance": {"expected-statuses": ["200"]},
    "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "413", "415"]},
    "not_a_server_error": {"expected-statuses": ["200", "4xx"]},
}


def description(app: Any, headers: dict[str, str] | None = None) -> BaseSchema:
    """The OpenAPI description that `app` serves to a request with `headers`, ready to generate
    requests from.
    """
    texts = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=3)
    schemathesis.openapi.format("json-object", texts.map(json.dumps))
    schemathesis.openapi.format("rust-regex", st.sampled_from(["a+", "[0-9]{4}", "(yes|no)", "é."]))
    config = schemathesis.Config.from_dict(
        {"checks": _CHECKS, "request-timeout": SECONDS_A_CASE, "generation": {"database": "none"}}
    )
    path = "/openapi.json"
    behind = streaming(app)
    return schemathesis.openapi.from_asgi(path, behind, config=config, headers=headers or {})


def check(case: Any, **sending: Any) -> Counter[str]:
    """Send `case`, and apply all checks to the answer.

    A valid case may be refused with a code of `BEYOND_SCHEMAS`; then it is sent again without the
    field that the error names, repeatedly if needed, so that the rest of it is tested as well.

    Returns:
        the codes of such refusals.

    Raises:
        FailureGroup: the answer contradicts the description.
    """
    refused: Counter[str] = Counter()
    response = case.call(**sending)
    while case.meta.generation.mode.is_positive and response.status_code == 400:
        error = _error(response)
        field = re.split(r"[.\[]", error["param"] or "")[0]
        # Schemathesis also takes strings from the loaded code, whatever their format.
        is_no_json = "not valid JSON" in error.get("message", "") and isinstance(
            case.body[field], str
        )
        if error["code"] not in BEYOND_SCHEMAS and not is_no_json:
            break
        if error["code"] == "unsupported_parameter" and field not in _OF_THE_MODEL:
            break
        refused[error["code"]] += 1
        if field in _REQUIRED or case.body.pop(field, None) is None:
            case.validate_response(
                response, excluded_checks=[positive_data_acceptance], **_kept(sending)
            )
            return refused
        response = case.call(**sending)
    may_refuse = case.operation.label in _MANAGING and response.status_code in (403, 404)
    excluded = [positive_data_acceptance] if may_refuse else []
    case.validate_response(response, excluded_checks=excluded, **_kept(sending))
    return refused


def _error(response: Any) -> dict[str, Any]:
    found = response.json()
    return found if isinstance(found["error"], str) else found["error"]


def _kept(sending: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a check needs to send a case again."""
    return {"headers": sending["headers"], "transport_kwargs": sending} if sending else {}


def operations(schema: BaseSchema) -> list[APIOperation]:
    """Every method of every path."""
    return [found.ok() for found in schema.get_all_operations()]


def borders(operation: APIOperation) -> Iterator[Any]:
    """Cases at and beyond the limits of every field, the same each time."""
    schema = operation.schema
    config = schema.config.generation_for(operation=operation)
    yield from schema.iter_coverage_cases(
        operation, generation_modes=list(_MODES), generation_config=config
    )


def spread(cases: Iterable[Any], most: int) -> list[Any]:
    """At most `most` of `cases`, spread evenly."""
    found = list(cases)
    step = max(1, -(-len(found) // most))
    return list(itertools.islice(found, 0, None, step))


def drawn(operation: APIOperation, mode: GenerationMode, count: int) -> list[Any]:
    """`count` random cases, valid or invalid ones; fewer if there are no more."""
    cases: list[Any] = []

    @seed(20_260_101)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def take(case: Any) -> None:
        cases.append(case)

    take()
    return cases
