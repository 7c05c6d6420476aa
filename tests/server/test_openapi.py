"""The endpoint conforms to its own OpenAPI description, whatever schemathesis generates from it.

Every answer has a documented status, type and form; invalid requests are refused, valid ones are
accepted, unless the refusal has one of the codes of `BEYOND_SCHEMAS`: they concern several values
together, or the model, so that no schema can express them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode

from described import HOST, borders, check, description, drawn, operations, spread
from hearth.app.server.openapi import STATUSES, document
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import Policy
from hearth.app.server.tables.answers import exactly
from hearth.app.server.tables.ollama_answers import NEVER
from suiting_host import SuitingHost

NOTHING_SENT = {endpoint.path for endpoint in ENDPOINTS if not (endpoint.table or endpoint.query)}


@dataclass
class Described:
    """An application that answers every request, and its description as schemathesis reads it."""

    schema: Any
    seen: Counter[str]

    def check(self, cases: list[Any], **sending: Any) -> None:
        for case in cases:
            self.seen["cases"] += 1
            self.seen.update(check(case, **sending))

    def operation(self, label: str) -> Any:
        method, path = label.split(" ", 1)
        return self.schema[path][method]


@pytest.fixture
def described(endpoint) -> Described:
    made = endpoint(host_kind=SuitingHost, policy=Policy(frozenset({HOST}))).unpaced()
    return Described(description(made.app), Counter())


LABELS = sorted({f"{one.method} {one.path.replace(':path', '')}" for one in ENDPOINTS})
DESCRIBED = [label for label in LABELS if label != "GET /openapi.json"]
"""schemathesis does not request the URL that it read the description from."""
NOT_OFFERED = {f"{one.method} {one.path}" for one in ENDPOINTS if one.answer == NEVER}
ASKABLE = [label for label in DESCRIBED if label not in NOT_OFFERED]


def modes(label: str) -> Iterator[GenerationMode]:
    """Where no input is sent, there are no invalid cases."""
    yield GenerationMode.POSITIVE
    path = label.split(" ", 1)[1]
    if path not in NOTHING_SENT or "{" in path:
        yield GenerationMode.NEGATIVE


def test_all_operations_are_tried(described) -> None:
    assert sorted(operation.label for operation in operations(described.schema)) == DESCRIBED


@pytest.mark.parametrize("label", sorted(NOT_OFFERED))
def test_what_is_not_offered_says_so(endpoint, label) -> None:
    reply = endpoint().post(label.split(" ")[1].replace("{digest}", "sha256:0"), {})
    assert reply.status == 501 and reply.json["code"] == "not_offered"
    assert "hearth" in reply.json["error"] or "Hub" in reply.json["error"]


@pytest.mark.parametrize("label", ASKABLE)
def test_answers_are_as_described(described, label) -> None:
    operation = described.operation(label)
    described.check(spread(borders(operation), 30))
    for mode in modes(label):
        described.check(drawn(operation, mode, 5))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("label", ASKABLE)
def test_twenty_thousand_answers_are_as_described(described, label) -> None:
    """9,000 cases at the limits, and the others random."""
    operation = described.operation(label)
    described.check(list(borders(operation)))
    for mode in modes(label):
        described.check(drawn(operation, mode, 400))


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_as_described_is_noticed(endpoint, stream) -> None:
    """This tests the check: the description here contains none of the real answers and events."""
    made = endpoint(host_kind=SuitingHost, policy=Policy(frozenset({HOST})))
    nothing = exactly({"nothing": {}})
    made.app.state.endpoints = [replace(one, answer=nothing, event=nothing) for one in ENDPOINTS]
    operation = description(made.app)["/v1/generate"]["POST"]
    case = operation.Case(body={"model": "tiny", "prompt": "Once", "stream": stream})
    with pytest.raises(FailureGroup, match="nothing"):
        case.call_and_validate()


def test_the_description_is_small_and_complete(endpoint) -> None:
    written = endpoint().get("/openapi.json")
    assert len(written.body) < 300_000
    for endpoint_ in ENDPOINTS:
        path = endpoint_.path.replace(":path", "")
        operation = written.json["paths"][path][endpoint_.method.lower()]
        assert set(operation["responses"]) == {"200", *STATUSES}


def test_models_are_described_by_the_names_that_work(endpoint, tmp_path, tiny_model) -> None:
    for folder in ("org a", "ürg"):
        (tmp_path / "models" / folder).mkdir(parents=True)
        shutil.copy(tiny_model, tmp_path / "models" / folder / "same.gguf")
    made = endpoint(host_kind=SuitingHost, policy=Policy(frozenset({HOST})))
    schema = description(made.app)
    operation = schema["/v1/models/{name}"]["GET"]
    names = next(iter(operation.path_parameters)).definition["schema"]["enum"]
    assert {"tiny", "org a/same", "ürg/same"} <= set(names)
    for name in names:
        answer = operation.Case(path_parameters={"name": name}).call_and_validate()
        assert answer.json()["id"] == name
        assert made.chat(model=name).status == 200


def test_the_key_stands_in_the_description() -> None:
    asks = document(ENDPOINTS, key=True)["paths"]
    assert "security" not in asks["/health"]["get"]
    assert asks["/v1/models"]["get"]["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "security" not in document(ENDPOINTS, key=False)["paths"]["/v1/models"]["get"]
