"""Pages of other sites have no access, except the sites that are named."""

from __future__ import annotations

import pytest

from endpoints import HELLO
from hearth.app.server.security import parse_origin, policy_for
from hearth.backends.errors import InvalidParameter

PAGE = "https://chat.example.org"
HOST = ("host", "localhost:4242")
ORIGIN = ("origin", PAGE)
PREFLIGHT = (
    HOST,
    ORIGIN,
    ("sec-fetch-site", "cross-site"),
    ("access-control-request-method", "POST"),
    ("access-control-request-headers", "authorization, content-type,x-stainless-os, x-evil"),
)
CHAT = "/v1/chat/completions"


@pytest.fixture
def named(endpoint):
    return endpoint(policy=policy_for("localhost", "127.0.0.1", "a-key", [PAGE, "app://notes"]))


def ask(made, method, path, *headers):
    return made.send(method, path, headers)


def shared(reply):
    return {name: value for name, value in reply.headers.items() if name.startswith("access")}


def test_a_named_page_may_ask_what_it_may_send_without_the_key(named) -> None:
    reply = ask(named, "OPTIONS", CHAT, *PREFLIGHT)
    assert reply.status == 204 and reply.headers["vary"] == "origin"
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    allowed = reply.headers["access-control-allow-headers"].split(", ")
    wanted = {"authorization", "content-type", "x-api-key", "anthropic-version", "x-stainless-os"}
    assert wanted <= set(allowed) and "x-evil" not in allowed
    assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://chat.example.org"])
def test_another_page_may_not(named, origin) -> None:
    headers = [one for one in PREFLIGHT if one != ORIGIN]
    reply = ask(named, "OPTIONS", CHAT, *headers, ("origin", origin))
    assert reply.status == 403 and shared(reply) == {}
    assert reply.headers["vary"] == "origin"


def test_two_origins_are_no_named_page(named) -> None:
    reply = ask(named, "OPTIONS", CHAT, *PREFLIGHT, ("origin", "https://evil.example"))
    assert reply.status == 403 and shared(reply) == {}


def test_the_answers_to_a_named_page_are_shared_with_it(named) -> None:
    key = ("authorization", "Bearer a-key")
    for origin in (PAGE, "app://notes"):
        reply = ask(named, "GET", "/v1/models", HOST, ("origin", origin), key)
        assert reply.status == 200 and reply.headers["access-control-allow-origin"] == origin
    locked = ask(named, "GET", "/v1/models", HOST, ORIGIN)
    assert locked.status == 401 and locked.headers["access-control-allow-origin"] == PAGE


def test_streams_are_shared_too(endpoint) -> None:
    made = endpoint(policy=policy_for("localhost", "127.0.0.1", "", [PAGE]))
    json = ("content-type", "application/json")
    reply = made.post(CHAT, {**HELLO, "stream": True}, (HOST, ORIGIN, json))
    assert reply.status == 200 and reply.complete
    assert reply.headers["access-control-allow-origin"] == PAGE


def test_a_named_page_needs_our_name_and_the_key(named) -> None:
    evil = ("host", "evil.example")
    assert ask(named, "OPTIONS", CHAT, evil, *PREFLIGHT[1:]).status == 403
    assert ask(named, "OPTIONS", CHAT, HOST, ORIGIN).status == 401
    assert ask(named, "GET", "/v1/models", HOST, ORIGIN).status == 401


def test_who_comes_from_no_page_is_answered_as_ever(named) -> None:
    reply = ask(named, "GET", "/v1/models", HOST, ("x-api-key", "a-key"))
    assert reply.status == 200 and shared(reply) == {}
    foreign = ask(named, "GET", "/v1/models", HOST, ("sec-fetch-site", "cross-site"))
    assert foreign.status == 403


def test_where_none_is_named_there_is_no_header_of_cors(endpoint) -> None:
    reply = ask(endpoint(), "OPTIONS", CHAT, *PREFLIGHT)
    assert reply.status == 403 and shared(reply) == {} and "vary" not in reply.headers
    assert ask(endpoint(), "OPTIONS", CHAT, HOST).status == 405


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("HTTPS://Chat.Example.ORG/", PAGE),
        ("https://chat.example.org:443", PAGE),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("https://chat.example.org:0443", PAGE),
    ],
)
def test_an_origin_is_compared_as_browsers_write_it(given, origin) -> None:
    assert parse_origin(given) == origin


@pytest.mark.parametrize(
    "given",
    [
        *("*", "", "null", "chat.example.org", "https://*", "https://*.example.org", "https://"),
        *("https://a.example/path", "https://user@a.example", "https://a.example:0", "file://"),
        *("https://a.example:99999", "https://a.example?x", "https://a b", "//a.example"),
    ],
)
def test_what_is_no_origin_is_refused(given) -> None:
    with pytest.raises(InvalidParameter) as refused:
        policy_for("localhost", "127.0.0.1", "", [given])
    assert refused.value.param == "cors_origin" and refused.value.exit_code == 2
