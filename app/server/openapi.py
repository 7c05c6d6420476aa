"""`GET /openapi.json` and `GET /v1/capabilities`: the parameter table, written out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server.endpoint import Endpoint
from hearth.app.server.parameters import Parameter, Table
from hearth.app.server.schema import Json
from hearth.app.server.security import OPEN_PATHS
from hearth.app.server.services import services_of
from hearth.backends.version import hearth_version

ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_ANTHROPIC_ERROR: Final[Json] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_OLLAMA_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
STATUSES: Final = {
    "400": "a field has a wrong value, is unknown or cannot be honoured; `param` names it",
    "401": "the key is missing or wrong",
    "403": "the host name or another site's page",
    "404": "there is no such model or URL",
    "405": "the URL does not take that method",
    "408": "the body did not come in time",
    "413": "the body is too large",
    "415": "the body is not plain JSON",
    "422": "the model's file or template cannot be used",
    "429": "more requests wait than may; Retry-After says when to try again",
    "431": "the headers are too large",
    "500": "a defect",
    "502": "a remote server answered with something else",
    "503": "the model or the server is loading, leaving or away; see Retry-After",
    "504": "a remote server did not answer in time",
    "507": "the model does not fit into memory",
}
"""Every status of an error and when it comes."""


def document(endpoints: Iterable[Endpoint], models: Iterable[str] = ()) -> Json:
    """The OpenAPI 3.1 description of `endpoints`.

    Args:
        models: the names that `model` takes; none: any name.
    """
    names = sorted(models)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": hearth_version(),
            "description": "Language models of this machine, for programs that speak to OpenAI.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
    }


def _operation(endpoint: Endpoint, models: list[str]) -> Json:
    operation: Json = {
        "summary": endpoint.summary,
        "operationId": _identifier(endpoint),
        "responses": _responses(endpoint),
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"enum": models} if models else {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"\{(\w+)(?::path)?\}", endpoint.path)
    ]
    parameters += [_query(parameter, models) for parameter in endpoint.query]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.table is not None:
        schema = endpoint.table.json()
        if models and "model" in schema["properties"]:
            schema["properties"]["model"] |= {"enum": models}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if endpoint.path not in OPEN_PATHS:
        operation["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
    return operation


def _identifier(endpoint: Endpoint) -> str:
    return re.sub(r"[^a-z0-9]+", "_", f"{endpoint.method} {endpoint.path}".lower()).strip("_")


def _query(parameter: Parameter, models: list[str]) -> Json:
    schema = {} if parameter.schema is None else parameter.schema.json()
    if models and parameter.name == "model":
        schema = {"enum": models}
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.help,
        "schema": schema,
    }


def _responses(endpoint: Endpoint) -> Json:
    content: Json = {endpoint.media: {"schema": endpoint.answer or {"type": "object"}}}
    if endpoint.media == "text/plain":
        content = {"text/plain": {"schema": {"type": "string"}}}
    if endpoint.streams:
        content[endpoint.stream_media] = {"schema": {"type": "string"}}
    error = ERROR
    if endpoint.path.startswith("/v1/messages"):
        error = _ANTHROPIC_ERROR
    elif endpoint.path.startswith("/api/"):
        error = _OLLAMA_ERROR
    failures = {
        status: {"description": why, "content": {"application/json": {"schema": error}}}
        for status, why in STATUSES.items()
    }
    return {"200": {"description": "the answer", "content": content}, **failures}


def capabilities(endpoints: Iterable[Endpoint]) -> Json:
    """What is done with every field: honoured, without effect, or refused, and why."""
    return {
        f"{endpoint.method} {endpoint.path.replace(':path}', '}')}": {
            "summary": endpoint.summary,
            "streams": endpoint.streams,
            "parameters": dict(_rows(endpoint.table)) if endpoint.table else {},
        }
        for endpoint in endpoints
    }


def _rows(table: Table) -> Iterable[tuple[str, Any]]:
    for parameter in table:
        yield (
            parameter.name,
            {
                "treatment": parameter.treatment,
                "values": parameter.schema.words if parameter.schema is not None else None,
                "default": parameter.default or None,
                "required": parameter.required,
                "help": parameter.help,
            },
        )


async def get_openapi(http: HttpRequest) -> Response:
    """The description of this server, with the models that it has now."""
    endpoints = http.app.state.endpoints
    models = [found.name for found in services_of(http).catalog.found()]
    return JSONResponse(document(endpoints, models))


async def get_capabilities(http: HttpRequest) -> Response:
    """What is done with every field."""
    return JSONResponse(capabilities(http.app.state.endpoints))
