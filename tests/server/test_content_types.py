"""Which content types are read as JSON: on `/api/*` also those that Ollama's clients and `curl -d`
send, unless a web page could have sent the request.
"""

from __future__ import annotations

import pytest

from endpoints import HELLO
from hearth.app.server.security import policy_for

KEY = "a-key-of-our-own"
HOST = ("host", "localhost:4242")
BEARER = ("authorization", f"Bearer {KEY}")
FORM = ("content-type", "application/x-www-form-urlencoded")
OF_BROWSERS = (
    ("origin", "http://localhost:4242"),
    ("referer", "http://localhost:4242/"),
    ("cookie", "a=b"),
    ("sec-fetch-site", "none"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-ch-ua", '"Chromium"'),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)"),
)
CHAT = {**HELLO, "stream": False}


def send(made, path, *headers, body=CHAT):
    return made.post(path, body, headers)


@pytest.mark.parametrize("kind", [(), (FORM,)])
def test_what_curl_and_ollamas_clients_send_is_read(endpoint, kind) -> None:
    made = endpoint()
    assert send(made, "/api/chat", HOST, *kind, ("user-agent", "curl/8.5.0")).status == 200
    assert send(made, "/api/show", HOST, *kind, body={"model": "tiny"}).status == 200


@pytest.mark.parametrize("browser", OF_BROWSERS)
@pytest.mark.parametrize("kind", [(), (FORM,)])
def test_what_a_page_can_send_is_not(endpoint, kind, browser) -> None:
    assert send(endpoint(), "/api/chat", HOST, *kind, browser).status == 415


@pytest.mark.parametrize("browser", [one for one in OF_BROWSERS if one[0] != "origin"])
def test_with_the_key_it_is_read_from_any_sender(endpoint, browser) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    assert send(made, "/api/chat", HOST, FORM, BEARER, browser).status == 200
    assert send(made, "/api/chat", ("host", "proxy.example"), BEARER, browser).status == 200
    assert send(made, "/api/chat", HOST, FORM, browser).status == 401


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "multipart/form-data",
        "application/x-www-form-urlencoded; charset=utf-8",
        "application/octet-stream",
        "",
    ],
)
def test_no_other_type_is_read(endpoint, kind) -> None:
    assert send(endpoint(), "/api/chat", HOST, ("content-type", kind)).status == 415
    assert send(endpoint(), "/api/chat", HOST, FORM, ("content-type", kind)).status == 415


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("kind", [(), (FORM,)])
def test_elsewhere_it_must_be_declared_as_json(endpoint, path, kind) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    assert send(made, path, HOST, BEARER, *kind).status == 415
