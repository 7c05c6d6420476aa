"""The HTML pages, the paths without /v1, and the answer for an unknown URL."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser

import pytest

from endpoints import HELLO
from hearth.app.server.endpoint import UNPREFIXED
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import policy_for

HOST = ("host", "mybox.lan:4242")
KEY = "a-key-of-our-own"
BEARER = ("authorization", f"Bearer {KEY}")


class Read(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data) -> None:
        self.text += data


@pytest.fixture
def open_made(endpoint):
    return endpoint(policy=policy_for("mybox.lan", "127.0.0.1", ""))


@pytest.fixture
def locked(endpoint):
    return endpoint(policy=policy_for("mybox.lan", "127.0.0.1", KEY))


def ask(made, method, path, *headers):
    return made.send(method, path, (HOST, *headers))


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_run_and_load_nothing(open_made, path) -> None:
    reply = ask(open_made, "GET", path)
    assert reply.status == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    )
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    page = Read(reply.body.decode())
    assert not {"script", "link", "img", "iframe", "form", "object"} & set(page.tags)
    assert not any(name == "src" or name.startswith("on") for name, _ in page.attributes)
    links = [value for name, value in page.attributes if name == "href"]
    assert links and all(re.match(r"[/#][^/]*", link or "") for link in links)


def test_the_home_page_has_the_base_urls_and_models(open_made) -> None:
    text = Read(ask(open_made, "GET", "/").body.decode()).text
    assert "http://mybox.lan:4242/v1" in text and "Ollama" in text and "tiny" in text


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/models", "/health"])
def test_head_is_answered_like_get(open_made, path) -> None:
    head, get = (ask(open_made, method, path) for method in ("HEAD", "GET"))
    assert head.status == get.status == 200
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("given", [(), (("authorization", "Bearer wrong"),)])
def test_without_its_key_a_page_shows_nothing(locked, given) -> None:
    reply = ask(locked, "GET", "/", *given)
    assert reply.status == 200 and b"API key" in reply.body
    for secret in (b"tiny", b"mybox", b"4242", b"/v1", b"/docs", b"href"):
        assert secret not in reply.body
    assert ask(locked, "HEAD", "/", *given).status == 200
    assert ask(locked, "POST", "/", *given).status == 405
    assert ask(locked, "GET", "/docs", *given).status == 401


def test_with_its_key_it_shows_all(locked) -> None:
    assert b"tiny" in ask(locked, "GET", "/", BEARER).body
    assert ask(locked, "GET", "/docs", BEARER).status == 200


def test_names_are_escaped(open_made, tmp_path, tiny_model) -> None:
    (tmp_path / "models").mkdir()
    name = '<img onerror="a()">&amp;\u202eb'
    shutil.copy(tiny_model, tmp_path / "models" / f"{name}.gguf")
    body = ask(open_made, "GET", "/").body.decode()
    page = Read(body)
    assert "img" not in page.tags and '<img onerror="a()">&amp;' in page.text
    assert "\u202e" not in body


def test_a_host_is_escaped(locked) -> None:
    """With the right key the Host is not checked, so it can be anything."""
    reply = locked.get("/", (("host", "<script>"), BEARER))
    assert reply.status == 200 and "script" not in Read(reply.body.decode()).tags


def test_docs_say_what_is_done_with_every_field(open_made) -> None:
    text = Read(ask(open_made, "GET", "/docs").body.decode()).text
    for endpoint in ENDPOINTS:
        assert f"{endpoint.method} {endpoint.path.replace(':path', '')}" in text
        for parameter in endpoint.table or ():
            assert parameter.name in text
    assert "honoured" in text and "refused" in text


def test_paths_work_without_their_prefix(endpoint) -> None:
    made = endpoint()
    assert made.post("/chat/completions", {**HELLO, "stream": False}).status == 200
    assert made.post("/completions", {"model": "tiny", "prompt": "Once"}).status == 200
    assert made.post("/embeddings", {}).error["param"] is not None
    assert made.post("/rerank", {}).error["param"] is not None
    assert made.get("/models").json == made.get("/v1/models").json
    assert made.get("/models/tiny").json["id"] == "tiny"
    described = made.get("/openapi.json").json
    assert "/models" not in described["paths"]
    assert all(path.replace(":path", "") in described["info"]["description"] for path in UNPREFIXED)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/messages", "/v1/messages"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/api/tag", "/api/tags"),
        ("/v1/docs", "/docs"),
    ],
)
def test_an_unknown_url_is_told_the_nearest(open_made, path, meant) -> None:
    reply = ask(open_made, "POST", path)
    said = reply.json["error"]
    said = said if isinstance(said, str) else said["message"]
    assert reply.status == 404 and f"Did you mean {meant}?" in said
    assert "http://mybox.lan:4242/v1 for OpenAI" in said


def test_a_url_like_no_other_is_told_the_base_urls(open_made) -> None:
    said = ask(open_made, "GET", "/favicon.ico").error["message"]
    assert "Did you mean" not in said and "http://mybox.lan:4242/v1" in said
