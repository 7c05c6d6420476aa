"""Every parameter of every table × values that may be wrong for it: refused by its name, and
afterwards the endpoint still answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

import asgi
from endpoints import HELLO
from hearth.app.server.endpoint import Endpoint
from hearth.app.server.openapi import BEYOND_SCHEMAS
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.schema import AnyOf, Number, Schema
from places import Place, places
from suiting_host import SuitingHost

NO_JSON = ("NaN", "Infinity", "-Infinity", "1e400")
OTHERS = {
    "true": True,
    "a text": "some text",
    "a list": [1],
    "an object": {},
    "a huge number": 10**400,
    "a huge text": "x" * 300_000,
}
LEVELS = 2
"""How deep in a body parameters are tested."""
WITH_BODY = [endpoint for endpoint in ENDPOINTS if endpoint.table is not None]
FORMATS = FormatChecker(())


@FORMATS.checks("json-object", ValueError)
def writes_an_object(text: object) -> bool:
    return not isinstance(text, str) or isinstance(json.loads(text or "{}"), dict)


def beyond(schema: Schema | None) -> Iterator[float]:
    """Numbers just below and above a range."""
    for form in schema.forms if isinstance(schema, AnyOf) else (schema,):
        if isinstance(form, Number):
            step = 1 if form.whole else 0.001
            yield form.low if form.above_low else form.low - step
            yield form.high + step


def wrong_values(place: Place) -> Iterator[str]:
    """Wrong values as JSON, or nearly; an independent validator decides which values are right."""
    yield from NO_JSON
    right = Draft202012Validator(place.parameter.json(), format_checker=FORMATS)
    for value in (*OTHERS.values(), *beyond(place.parameter.schema)):
        if place.drops and isinstance(value, str):
            continue
        if not right.is_valid(value):
            yield json.dumps(value)
    if place.parameter.required:
        yield "null"


async def refused(app: Any, of: Endpoint, place: Place, written: str) -> None:
    reply = await asgi.exchange(app, of.method, of.path, place.body(written), asgi.JSON)
    if place.tells and reply.status == 200:  # An entry of another kind is left out, if it may be.
        assert place.parent in reply.headers["hearth-notices"].replace("[]", "[0]")
        return
    error = reply.json if isinstance(reply.error, str) else reply.error
    asked = f"{place.name} = {written[:40]}: {reply.body[:300]!r}"
    assert reply.status == 400 and error["code"].endswith(("_parameter", "_parameters")), asked
    # Another kind of object may have this value and lack another field.
    name = place.parent if place.tells else place.name
    assert error["param"].startswith(name), asked


async def absent(app: Any, of: Endpoint, place: Place) -> None:
    """null is equivalent to leaving the parameter out; without it, another field may be missing."""
    reply = await asgi.exchange(app, of.method, of.path, place.body("null"), asgi.JSON)
    error = {} if reply.status == 200 else reply.json
    error = error if isinstance(error.get("error", ""), str) else error["error"]
    assert reply.status == 200 or error["code"] in BEYOND_SCHEMAS, f"{place.name}: {error}"


async def answered(app: Any) -> None:
    body = json.dumps(HELLO).encode()
    reply = await asgi.exchange(app, "POST", "/v1/chat/completions", body, asgi.JSON)
    assert reply.json["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize("of", WITH_BODY, ids=lambda endpoint: endpoint.path)
def test_what_is_wrong_is_refused_by_its_name(endpoint, of) -> None:
    made = endpoint(host_kind=SuitingHost).unpaced()

    async def try_all() -> int:
        tried = 0
        for place in places(of.table, LEVELS):
            made.host.requests.clear()
            for written in wrong_values(place):
                await refused(made.app, of, place, written)
                tried += 1
            assert place.tells or not made.host.requests
            await answered(made.app)
            if not place.parameter.required:
                await absent(made.app, of, place)
        return tried

    assert asyncio.run(try_all()) >= 10


@pytest.mark.parametrize("of", WITH_BODY, ids=lambda endpoint: endpoint.path)
def test_what_is_misspelt_missing_or_without_effect_is_named(endpoint, of) -> None:
    made = endpoint(host_kind=SuitingHost)
    [first, *_] = places(of.table, 0)
    whole = json.loads(first.body('"tiny"'))

    def named(body: dict[str, Any]) -> tuple[int, str]:
        written = json.dumps(body).encode()
        reply = asyncio.run(asgi.exchange(made.app, of.method, of.path, written, asgi.JSON))
        error = reply.json if isinstance(reply.error, str) else reply.error
        return reply.status, error["param"]

    misspelt = f"{first.name}l"
    assert named({**whole, misspelt: 1}) == (400, misspelt)
    for parameter in of.table:
        if parameter.required:
            others = {k: v for k, v in whole.items() if k != parameter.name}
            assert named(others) == (400, parameter.name)
