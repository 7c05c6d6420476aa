"""`GET /openapi.json` and `GET /v1/capabilities`: the API, described from its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server.endpoint import EVENT_STREAM, UNPREFIXED, Endpoint
from hearth.app.server.errors import ANTHROPIC, OLLAMA
from hearth.app.server.parameters import Parameter
from hearth.app.server.schema import Json
from hearth.app.server.security import OPEN_PATHS
from hearth.app.server.services import services_of
from hearth.app.server.tables.answers import ANTHROPIC_ERROR, ERROR, OLLAMA_ERROR, TEXT
from hearth.app.server.tables.common import MODEL
from hearth.backends.contract.version import hearth_version

_ERRORS: Final = {
    "Error": ERROR,
    "AnthropicError": ANTHROPIC_ERROR,
    "OllamaError": OLLAMA_ERROR,
}
_DESCRIPTION: Final = (
    "Local language models with the APIs of OpenAI, Anthropic and Ollama. These paths also work"
    f" without /v1: {', '.join(path.replace(':path}', '}') for path in UNPREFIXED)}."
)
STATUSES: Final = {
    "400": "a field has a wrong value or cannot be honoured; `param` names it",
    "401": "the key is missing or wrong",
    "403": "the Host is not allowed, the request comes from a page of another site, or clients may "
    "not manage models",
    "404": "no such model or URL",
    "405": "the URL does not support that method",
    "408": "the request did not arrive in time",
    "409": "the model is loaded, bundled with Hearth, or not in the library folder",
    "413": "the body is too large",
    "414": "the URL is too long",
    "415": "the content type is not JSON, or the body is compressed",
    "422": "the model's file or template cannot be used",
    "429": "too many requests are waiting; retry after Retry-After",
    "431": "the headers are too large",
    "500": "an internal error",
    "501": "the operation is not offered",
    "502": "a remote server sent an invalid response",
    "503": "the model or the server is loading, shutting down or not running; see Retry-After",
    "504": "a remote server did not respond in time",
    "507": "the model does not fit into memory",
}
"""Every status of an error response, and its meaning."""

CODES: Final = {
    "invalid_parameter": "a required field is missing, a value has a wrong type or is out of "
    "range, or the body is not a JSON object",
    "malformed_request": "the request is not HTTP, or is ambiguous HTTP",
}
"""Codes of status 400 for requests that do not follow the description."""
BEYOND_SCHEMAS: Final = {
    "unsupported_parameter": "a field or value cannot be honoured by this server or model",
    "conflicting_parameters": "two fields contradict each other, though each is valid by itself",
    "limit_exceeded": "each part is valid, but the whole is too large: bytes of a schema or of an "
    "array of choices, nesting, number of values, tool calls of one turn, functions of all "
    "namespaces, messages of all tool results, messages with cache_control",
    "unknown_token": "a token id is not in the model's vocabulary",
    "context_length_exceeded": "the prompt does not fit into the context",
    "no_chat_template": "the model has no chat template",
}
"""Codes of status 400 that no schema can express: they depend on several values or on the model."""


def document(endpoints: Iterable[Endpoint], models: Iterable[str] = (), *, key: bool) -> Json:
    """The OpenAPI 3.2 description of `endpoints`.

    Args:
        models: the allowed values of `model`; empty: any name.
        key: whether requests need the API key.
    """
    names = sorted(models)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        operation = _operation(endpoint, names)
        if key and endpoint.path not in OPEN_PATHS:
            operation["security"] = [{"bearer": []}, {"x-api-key": []}]
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "Hearth",
            "version": hearth_version(),
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": _ERRORS,
            "responses": {
                f"{name}{status}": {
                    "description": why,
                    "content": {
                        "application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}
                    },
                }
                for name in _ERRORS
                for status, why in STATUSES.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(endpoint: Endpoint, models: list[str]) -> Json:
    operation: Json = {
        "summary": endpoint.summary,
        "operationId": re.sub(
            r"[^a-z0-9]+", "_", f"{endpoint.method} {endpoint.path}".lower()
        ).strip("_"),
        "responses": _responses(endpoint),
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"enum": models}
            if models and name == "name"
            else {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"\{(\w+)(?::path)?\}", endpoint.path)
    ]
    parameters += [_query(parameter, models) for parameter in endpoint.query]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.table is not None:
        schema = endpoint.table.json()
        for row in endpoint.table:
            if models and row.schema is MODEL.schema:
                for name in (row.name, *row.aliases):
                    schema["properties"][name] |= {"enum": models}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


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
    content: Json = {"application/json": {"schema": endpoint.answer}}
    if endpoint.media != "application/json":
        content[endpoint.media] = {"schema": TEXT}
    if endpoint.event is not None:
        content[endpoint.stream_media] = {"itemSchema": _item(endpoint)}
    name = "Error"
    if endpoint.path.startswith(ANTHROPIC):
        name = "AnthropicError"
    elif endpoint.path.startswith(OLLAMA):
        name = "OllamaError"
    failures: Json = {
        status: {"$ref": f"#/components/responses/{name}{status}"} for status in STATUSES
    }
    if endpoint.unready is not None:
        either = {"anyOf": [endpoint.unready, _ERRORS[name]]}
        failures["503"] = {
            "description": STATUSES["503"],
            "content": {"application/json": {"schema": either}},
        }
    return {"200": {"description": "the answer", "content": content}, **failures}


def _item(endpoint: Endpoint) -> Json:
    """One line or event of a stream; see "sequential media types" in OpenAPI 3.2."""
    if endpoint.stream_media != EVENT_STREAM:
        return endpoint.event or {}
    written = {"contentMediaType": "application/json", "contentSchema": endpoint.event}
    return {
        "type": "object",
        "properties": {
            "event": TEXT,
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, written]},
        },
        "required": ["data"],
    }


def capabilities(endpoints: Iterable[Endpoint]) -> Json:
    """How every endpoint treats each of its fields, and why."""
    return {
        f"{endpoint.method} {endpoint.path.replace(':path}', '}')}": {
            "summary": endpoint.summary,
            "streams": endpoint.event is not None,
            "parameters": {
                parameter.name: {
                    "treatment": parameter.treatment,
                    "values": parameter.schema.words if parameter.schema is not None else None,
                    "default": parameter.default or None,
                    "required": parameter.required,
                    "help": parameter.help,
                }
                for parameter in endpoint.table or ()
            },
        }
        for endpoint in endpoints
    }


async def get_openapi(http: HttpRequest) -> Response:
    """The description of this server, with its current models."""
    endpoints = http.app.state.endpoints
    models = await services_of(http).catalog.models()
    names = [model.name for model in models]
    return JSONResponse(document(endpoints, names, key=http.app.state.key))


async def get_capabilities(http: HttpRequest) -> Response:
    """How every endpoint treats each of its fields."""
    return JSONResponse(capabilities(http.app.state.endpoints))
