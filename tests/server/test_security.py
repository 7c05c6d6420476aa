"""Host, Origin and key, on every route."""

from __future__ import annotations

import pytest

from hearth.app.server.application import ENDPOINTS
from hearth.app.server.security import OPEN_PATHS, policy_for
from hearth.backends.errors import InvalidParameter

HOST = ("host", "127.0.0.1:4242")
KEY = "a-key-of-our-own"
PATHS = [(method, path.replace("{name:path}", "tiny")) for method, path, _ in ENDPOINTS]


def ask(made, method, path, *headers):
    headers = (*headers, ("content-type", "application/json"))
    return made.get(path, headers) if method == "GET" else made.post(path, b"{}", headers)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:4242", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]"),
        *("[::1]:4242",),
    ],
)
def test_our_names_are_answered(endpoint, host) -> None:
    assert endpoint().get("/v1/models", (("host", host),)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.local", "", "user@localhost", "localhost:0", "localhost:99999"),
        *("localhost:x", "localhost.evil.example", "192.168.1.5", "0.0.0.0", "[::]", "[::1", "::1"),
        *("localhost/", " localhost", "127.0.0.1.nip.io", "2130706433", "localhost:80:80"),
    ],
)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_name_that_is_not_ours_is_not_answered(endpoint, host, method, path) -> None:
    made = endpoint()
    reply = ask(made, method, path, ("host", host))
    assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert made.host.attached == 0


def test_one_host_header_it_must_be(endpoint) -> None:
    made = endpoint()
    assert made.get("/health", ()).status == 403
    assert made.get("/health", (HOST, HOST)).status == 403


@pytest.mark.parametrize(
    "header",
    [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1:3000"),
        ("sec-fetch-site", "cross-site"),
    ],
)
def test_pages_of_others_are_not_answered(endpoint, header) -> None:
    reply = endpoint().get("/v1/models", (HOST, header))
    assert reply.status == 403
    assert not any(name.startswith("access-control") for name in reply.headers)


def test_our_own_pages_are(endpoint) -> None:
    localhost = (("host", "LocalHost:4242"), ("origin", "http://localhost:4242"))
    assert endpoint().get("/v1/models", localhost).status == 200
    own = ("origin", "http://127.0.0.1:4242")
    reply = endpoint().get("/v1/models", (HOST, own, ("sec-fetch-site", "same-origin")))
    assert reply.status == 200
    assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize(("method", "path"), [*PATHS, ("GET", "/nothing")])
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", KEY]
)
def test_every_route_but_health_asks_for_the_key(endpoint, method, path, given) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    headers = [HOST] if given is None else [HOST, ("authorization", given)]
    reply = ask(made, method, path, *headers)
    if path in OPEN_PATHS:
        assert reply.status == 200
    else:
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"


def test_the_key_opens(endpoint) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    assert made.get("/v1/models", (HOST, ("authorization", f"Bearer {KEY}"))).status == 200


def test_without_a_key_any_is_accepted(endpoint) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", ""))
    assert made.get("/v1/models", (HOST, ("authorization", "Bearer x"))).status == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5"])
def test_off_loopback_there_must_be_a_key(address) -> None:
    with pytest.raises(InvalidParameter) as refused:
        policy_for(address, address, "")
    assert refused.value.exit_code == 2 and "HEARTH_API_KEY" in refused.value.hint


def test_off_loopback_addresses_and_the_asked_name_are_ours(endpoint) -> None:
    made = endpoint(policy=policy_for("mybox.lan", "192.168.1.5", KEY))
    key = ("authorization", f"Bearer {KEY}")
    for host in ("mybox.lan:4242", "192.168.1.5:4242", "localhost"):
        assert made.get("/v1/models", (("host", host), key)).status == 200
    assert made.get("/v1/models", (("host", "evil.example"), key)).status == 403


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\n"])
def test_a_key_that_fits_no_header_is_refused(key) -> None:
    with pytest.raises(InvalidParameter):
        policy_for("127.0.0.1", "127.0.0.1", key)
