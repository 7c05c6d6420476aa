"""Writes docs/api.md: every URL and every parameter, from the tables that the endpoint reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hearth.app.server.body import DEEPEST, MOST_BYTES, MOST_VALUES
from hearth.app.server.endpoint import Endpoint
from hearth.app.server.openapi import BEYOND_SCHEMAS, CODES, STATUSES
from hearth.app.server.parameters import Parameter, Table, Tagged
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.schema import AnyOf, ListOf, MapOf, Schema

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "api.md"
_HEAD: Final = f"""\
# Every URL and every parameter

How to start the endpoint and who may ask is in [serve.md](serve.md). This page is written by
`tools/api_docs.py` from the tables that requests are read with (`app/server/tables/`); a running
server says the same at `GET /openapi.json` and `GET /v1/capabilities`.

A parameter is honoured, accepted without an effect because it could change no answer of one
machine, or refused with status 400 and its name in `param`; one that stands in no table is refused
too, so that nothing is ignored in silence. Bodies are JSON objects in UTF-8 of at most
{MOST_BYTES >> 20} MiB, {DEEPEST} levels and {MOST_VALUES:,} values. `null` is the same as absent,
except where a parameter is required. What a request does not say is as the model's settings have
it.

`tools[].function` is a field of each entry of a list, `messages[](tool).content` one of those
entries that are of the kind `tool`.
"""
_ERRORS: Final = """\
## Errors

    {"error": {"message": "top_p must be ...", "type": "invalid_request_error",
               "param": "top_p", "code": "invalid_parameter"}}

`/v1/messages` and `/api/...` answer in the shape of their families, with `param` and `code` as
well. A stream that fails sends such an error and is cut off, without its last event. `Retry-After`
says when to try again, and `x-should-retry: false` that it would be in vain.
"""
_CODES: Final = """\
Codes of status 400. The last ones depend on several values or on the model, so that no schema can
say when they come.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_urls(), *_parameters(), *_ignored(), *_errors()])


def _urls() -> Iterator[str]:
    yield "## URLs\n"
    yield "| URL | what it does | streams |\n|---|---|---|"
    for endpoint in ENDPOINTS:
        streams = f"`{endpoint.stream_media}`" if endpoint.event is not None else ""
        yield f"| {_url(endpoint)} | {_cell(endpoint.summary)} | {streams} |"
    yield ""


def _url(endpoint: Endpoint) -> str:
    url = f"`{endpoint.method} {endpoint.path.replace(':path', '')}`"
    if endpoint.table is None and not endpoint.query:
        return url
    return f"[{url}](#{_anchor(endpoint)})"


def _anchor(endpoint: Endpoint) -> str:
    kept = (letter for letter in f"{endpoint.method} {endpoint.path}".lower())
    return "".join("-" if letter == " " else letter for letter in kept if letter not in "/{}:.")


def _parameters() -> Iterator[str]:
    """What each URL takes; what stood above already is only named."""
    told: dict[str, str] = {}
    for endpoint in ENDPOINTS:
        if endpoint.table is None and not endpoint.query:
            continue
        yield f"## {endpoint.method} {endpoint.path.replace(':path', '')}\n"
        yield f"{endpoint.summary}.\n"
        rows = list(_rows(endpoint.table or Table("", endpoint.query)))
        known: dict[str, list[str]] = {}
        new = ["| parameter | values | default | what it does |\n|---|---|---|---|"]
        for name, row in rows:
            url = _url(endpoint)
            where = told.setdefault(f"{name}{row}", url)
            if where == url:
                new.append(f"| `{name}` {row}")
            elif name.isidentifier():
                known.setdefault(where, []).append(f"`{name}`")
        if len(new) > 1:
            yield from (*new, "")
        for where, names in known.items():
            yield f"As at {where}: {', '.join(names)}.\n"


def _rows(table: Table, prefix: str = "", key: str = "") -> Iterator[tuple[str, str]]:
    """(name, the rest of its row) of each parameter, and of those in it; `key`, which tells the
    table from others, is part of the prefix.
    """
    for parameter in table:
        if parameter.name == key:
            continue
        name = f"{prefix}{parameter.name}"
        default = "required" if parameter.required else parameter.default
        cells = (_values(parameter), default, _meaning(parameter))
        yield name, "".join(f"| {_cell(cell)} " for cell in cells) + "|"
        if parameter.schema is not None:
            for path, inner, inner_key in _inside(parameter.schema):
                yield from _rows(inner, f"{name}{path}.", inner_key)


def _values(parameter: Parameter) -> str:
    if parameter.schema is None:
        return "none"
    said = _words(parameter.schema)
    return f"only {said}" if parameter.treatment == "refused" else said


def _words(schema: Schema) -> str:
    if isinstance(schema, AnyOf):
        return "; or ".join(_words(form) for form in schema.forms)
    if isinstance(schema, Tagged):
        said = f"an object, by `{schema.key}`: {', '.join(schema.kinds)}"
        if schema.default:
            said += f" ({schema.default} if it is absent)"
        if schema.refused:
            said += f"; refused: {', '.join(schema.refused)}"
        return said
    if isinstance(schema, ListOf | MapOf):
        return f"{schema.words}, each {_words(schema.of)}"
    return schema.words


def _meaning(parameter: Parameter) -> str:
    if parameter.treatment == "honoured":
        return parameter.help
    return f"*{parameter.treatment}*: {parameter.help}"


def _inside(schema: Schema) -> Iterator[tuple[str, Table, str]]:
    """(path, table, the field that tells it from others) of the tables that a value may be."""
    if isinstance(schema, Table):
        yield "", schema, ""
    elif isinstance(schema, Tagged):
        for kind, table in schema.kinds.items():
            yield f"({kind})" if len(schema.kinds) > 1 else "", table, schema.key
    elif isinstance(schema, ListOf):
        for path, table, key in _inside(schema.of):
            yield f"[]{path}", table, key
    elif isinstance(schema, AnyOf):
        for form in schema.forms:
            yield from _inside(form)


def _ignored() -> Iterator[str]:
    yield "## Without an effect\n"
    yield "Accepted, because they could change no answer of one machine:\n"
    for endpoint in ENDPOINTS:
        names = [one.name for one in endpoint.table or () if one.treatment == "without effect"]
        if names:
            yield f"- {_url(endpoint)}: {', '.join(f'`{name}`' for name in names)}"
    yield ""


def _errors() -> Iterator[str]:
    yield _ERRORS
    yield "| status | when |\n|---|---|"
    for status, why in STATUSES.items():
        yield f"| {status} | {_cell(why)} |"
    yield f"\n{_CODES}"
    yield "| code | when |\n|---|---|"
    for code, why in {**CODES, **BEYOND_SCHEMAS}.items():
        yield f"| `{code}` | {_cell(why)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
