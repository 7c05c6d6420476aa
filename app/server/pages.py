"""The HTML pages of the server: `GET /`, an overview, and `GET /docs`, the API reference.

They contain no script and load nothing. Every text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hearth.app.format import size
from hearth.app.server.endpoint import HTML, UNPREFIXED, Endpoint, base_urls
from hearth.app.server.models import describe_models
from hearth.app.server.openapi import STATUSES, capabilities
from hearth.app.server.services import services_of
from hearth.app.server.tables.answers import TEXT
from hearth.app.terminal import safe_text
from hearth.backends.contract.version import hearth_version

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #8886; padding: .25rem .75rem .25rem 0; text-align: left;
  vertical-align: top; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
"""
_LINKS: Final = (
    ("/docs", "API reference"),
    ("/openapi.json", "OpenAPI description"),
    ("/v1/models", "models"),
    ("/health", "health"),
    ("/metrics", "metrics"),
)


async def home(http: Request) -> Response:
    """The base URLs for each kind of client, the models and links.

    If the request lacks a required key, the page only states that a key is required.
    """
    needs_key = http.app.state.key
    if needs_key and not http.state.keyed:
        return _page(
            "Hearth", "<p>This server requires an API key: send it as", _HOW_TO_SEND_THE_KEY
        )
    urls = base_urls(root_of(http))
    key = (
        f"<p>An API key is required: send it as {_HOW_TO_SEND_THE_KEY}"
        if needs_key
        else "<p>No API key is required; clients that insist on one accept any text.</p>"
    )
    models = await describe_models(services_of(http))
    return _page(
        f"Hearth {hearth_version()}",
        "<h2>Base URLs</h2>",
        _table(
            ("clients of", "base URL"),
            (
                ("OpenAI", _code(urls.openai)),
                ("Anthropic", _code(urls.anthropic)),
                ("Ollama", _code(urls.ollama)),
            ),
        ),
        key,
        "<h2>Models</h2>",
        _table(("name", "size", "quantization", "context", "loaded"), map(_model, models)),
        "<h2>Links</h2><ul>",
        *(f'<li><a href="{path}">{path}</a>: {_text(name)}</li>' for path, name in _LINKS),
        "</ul>",
    )


async def docs(http: Request) -> Response:
    """The API reference: how every endpoint treats each of its fields."""
    described = capabilities(http.app.state.endpoints)
    unprefixed = ", ".join(_code(path.replace(":path}", "}")) for path in UNPREFIXED)
    return _page(
        "Hearth API",
        '<p><a href="/">Base URLs and models</a>. The complete schemas, nested fields included,'
        ' are in <a href="/openapi.json">/openapi.json</a>. '
        f"These paths also work without <code>/v1</code>: {unprefixed}.</p>",
        "<ul>",
        *(f'<li><a href="#{_anchor(url)}">{_text(url)}</a></li>' for url in described),
        "</ul>",
        *(_endpoint(url, entry) for url, entry in described.items()),
        "<h2>Errors</h2>",
        _table(("status", "when"), ((status, _text(why)) for status, why in STATUSES.items())),
    )


def root_of(http: Request) -> str:
    """The URL of this server, without a path, as the client wrote it."""
    host, port = http.scope.get("server") or ("localhost", None)
    authority = http.headers.get("host") or (f"{host}:{port}" if port else host)
    return f"{http.url.scheme}://{authority}"


_HOW_TO_SEND_THE_KEY: Final = (
    "<code>Authorization: Bearer KEY</code> or <code>x-api-key: KEY</code>.</p>"
)


def _page(title: str, *parts: str) -> Response:
    heading = _text(title)
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{heading}</h1>\n{chr(10).join(parts)}\n</body></html>\n",
        headers=_HEADERS,
    )


def _model(model: dict[str, Any]) -> Sequence[str]:
    known = model["hearth"]
    size_bytes, context = known["size_bytes"], known["context"] or known["trained_context"]
    return (
        _code(model["id"]),
        _text(size(size_bytes)) if size_bytes else "",
        _text(known["quantization"] or ""),
        f"{context:,}" if context else "",
        "yes" if known["loaded"] else "",
    )


def _endpoint(url: str, entry: dict[str, Any]) -> str:
    streams = " Can be streamed." if entry["streams"] else ""
    head = f'<h2 id="{_anchor(url)}">{_text(url)}</h2><p>{_text(entry["summary"])}.{streams}</p>'
    rows = [
        (
            _code(name),
            _text(field["values"] or ""),
            "required" if field["required"] else _text(field["default"] or ""),
            _text(field["treatment"]),
            _text(field["help"]),
        )
        for name, field in entry["parameters"].items()
    ]
    if not rows:
        return head
    return head + _table(("field", "values", "default", "treatment", "what it does"), rows)


def _anchor(url: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in url.lower())


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of `rows`, whose cells are HTML."""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
    return html.escape(safe_text(text))


PAGES: Final = (
    Endpoint("GET", "/", home, "Base URLs, models and links", answer=TEXT, media=HTML),
    Endpoint("GET", "/docs", docs, "The API reference", answer=TEXT, media=HTML),
)
