"""Host, Origin and key, on every route."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from hearth.app.server import security
from hearth.app.server.endpoint import UNPREFIXED
from hearth.app.server.pages import PAGES
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import OPEN_PATHS, policy_for
from hearth.backends.errors import InvalidParameter

HOST = ("host", "127.0.0.1:4242")
KEY = "a-key-of-our-own"
BEARER, X_KEY = ("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)
SERVED = {(one.method, one.path) for one in (*ENDPOINTS, *PAGES)}
SERVED |= {(method, path[3:]) for method, path in SERVED if path in UNPREFIXED}
ROUTES = sorted({(method, path.replace("{name:path}", "tiny")) for method, path in SERVED})
PATHS = sorted({path for _, path in ROUTES})
LOCKED = (*PATHS, "/nothing", "/health/", "/HEALTH", "/health/../v1/models")
OUR_NAMES = (
    *("host.docker.internal", "mybox", "mybox.example.org:4242", "MyBox"),
    *("localhost", "LOCALHOST:4242", "LocalHost", "127.0.0.1", "127.0.0.1:80", "127.9.9.9"),
    *("[::1]", "[::1]:4242", "[0:0:0:0:0:0:0:1]"),
)
OTHER_NAMES = (
    *(
        "evil.example",
        "evil.local",
        "evil.internal",
        "mybox.local",
        "example.org",
        "",
        "user@localhost",
        "user:pw@localhost",
    ),
    *("localhost:0", "localhost:99999", "localhost:x", "localhost:", "localhost:80:80"),
    *("localhost:4242@evil.example", "localhost.evil.example", "localhost.", "127.0.0.1."),
    *(
        "192.168.1.5",
        "0.0.0.0",
        "[::]",
        "[::1",
        "::1",
        "[fe80::1%eth0]",
        "localhost/",
        " localhost",
    ),
    *("localhost,evil.example", "localhost evil.example", "127.0.0.1.nip.io", "2130706433"),
    *("0x7f000001", "0177.0.0.1", "127.1", "127.0.0.1\t", "localhost\x00", "http://localhost"),
)
FOREIGN = (
    ("origin", "https://evil.example"),
    ("origin", "null"),
    ("origin", ""),
    ("origin", "http://127.0.0.1"),
    ("origin", "http://127.0.0.1:3000"),
    ("origin", "http://127.0.0.1:4242/"),
    ("origin", "http://127.0.0.1:4242.evil.example"),
    ("origin", "ftp://127.0.0.1:4242"),
    ("sec-fetch-site", "cross-site"),
)


def ask(made, method, path, *headers):
    given = (*headers, ("content-type", "application/json"))
    body = b"{}" if method == "POST" else b""
    return made.send(method, path, given, body)


@pytest.fixture
def made(endpoint, monkeypatch):
    """A server on loopback, on a machine whose name is mybox.example.org."""
    monkeypatch.setattr(security.socket, "gethostname", lambda: "MyBox.example.org")
    return endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", ""))


@pytest.mark.parametrize("host", OUR_NAMES)
def test_our_names_are_answered(made, host) -> None:
    assert made.get("/v1/models", (("host", host),)).status == 200


@pytest.mark.parametrize("host", OTHER_NAMES)
def test_a_name_that_is_not_ours_is_answered_nowhere(made, host) -> None:
    for method, path in ROUTES:
        assert ask(made, method, path, ("host", host)).status == 403, path
    assert made.host.attached == 0


def test_one_host_header_it_must_be(endpoint) -> None:
    made = endpoint()
    for path in PATHS:
        assert made.get(path, ()).status == 403
        assert made.get(path, (HOST, HOST)).status == 403
        assert made.get(path, (HOST, ("host", "evil.example"))).status == 403


@pytest.mark.parametrize("header", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE"])
def test_pages_of_others_are_not_answered(endpoint, method, header) -> None:
    for path in PATHS:
        reply = ask(endpoint(), method, path, HOST, header)
        assert reply.status == 403
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_our_own_pages_are(endpoint) -> None:
    localhost = (("host", "LocalHost:4242"), ("origin", "http://localhost:4242"))
    assert endpoint().get("/v1/models", localhost).status == 200
    own = ("origin", "http://127.0.0.1:4242")
    reply = endpoint().get("/v1/models", (HOST, own, ("sec-fetch-site", "same-origin")))
    assert reply.status == 200
    assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize(
    "given",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", f"Basic {KEY}"),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {KEY}x"),),
        (("authorization", f"Bearer {KEY[:-1]}"),),
        (("authorization", f"Bearer {KEY.upper()}"),),
        (("authorization", KEY),),
        (("x-api-key", "wrong"),),
        (("x-api-key", ""),),
        (("x-api-key", f"Bearer {KEY}"),),
        (BEARER, ("x-api-key", "wrong")),
        (("authorization", "Bearer wrong"), X_KEY),
        (BEARER, ("authorization", "Bearer wrong")),
        (("api-key", KEY), ("cookie", KEY)),
    ],
)
def test_every_route_but_health_asks_for_the_key(endpoint, given) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    for method, path in product(("GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT"), LOCKED):
        reply = ask(made, method, path, HOST, *given)
        if path in OPEN_PATHS:
            assert reply.status in (200, 405), (method, path)
            continue
        assert reply.status == 401, (method, path)
        assert reply.headers["www-authenticate"] == "Bearer"
        assert KEY not in str(reply)
    paths = {route.path for route in made.app.routes}
    assert paths == {path for _, path in SERVED} and set(OPEN_PATHS) == {"/health", "/"}


@pytest.mark.parametrize("given", [(BEARER,), (X_KEY,), (BEARER, X_KEY)])
def test_the_key_opens_every_route(endpoint, given) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    for method, path in ROUTES:
        assert ask(made, method, path, HOST, *given).status not in (401, 403), path
    assert ask(made, "GET", "/nothing", HOST, *given).status == 404


def test_a_scheme_is_of_any_case(endpoint) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    for scheme in ("bearer", "BEARER"):
        given = ("authorization", f"{scheme}  {KEY} ")
        assert ask(made, "GET", "/v1/models", HOST, given).status == 200


def test_without_a_key_any_is_accepted(endpoint) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", ""))
    assert made.get("/v1/models", (HOST, ("authorization", "Bearer x"))).status == 200


def test_anthropics_clients_get_an_error_of_theirs(endpoint) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        locked = ask(made, "POST", path, HOST)
        assert locked.status == 401
        assert locked.json["type"] == "error"
        assert locked.json["error"]["type"] == "authentication_error"
        foreign = ask(made, "POST", path, ("host", "evil.example"))
        assert foreign.json["error"]["type"] == "permission_error"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5"])
def test_off_loopback_there_must_be_a_key(address) -> None:
    with pytest.raises(InvalidParameter) as refused:
        policy_for(address, address, "")
    assert refused.value.exit_code == 2
    assert "HEARTH_API_KEY" in refused.value.hint and "--generate-key" in refused.value.hint


def test_off_loopback_addresses_and_the_asked_name_are_ours(endpoint) -> None:
    made = endpoint(policy=policy_for("mybox.lan", "192.168.1.5", KEY))
    for host in ("mybox.lan:4242", "192.168.1.5:4242", "localhost"):
        assert made.get("/v1/models", (("host", host), BEARER)).status == 200
    for host in ("evil.example", "mybox.lan.evil.example", "2130706433", "mybox.lan."):
        assert made.get("/v1/models", (("host", host),)).status == 403


@pytest.mark.parametrize("hosts", [("evil.example",), ("",), (), ("a", "b")])
def test_the_right_key_makes_up_for_the_host_name(endpoint, hosts) -> None:
    made = endpoint(policy=policy_for("127.0.0.1", "127.0.0.1", KEY))
    named = [("host", host) for host in hosts]
    assert made.get("/v1/models", (*named, BEARER)).status == 200
    assert made.get("/v1/models", (*named, ("x-api-key", "wrong"))).status == 403
    foreign = ("origin", "https://other.example")
    assert made.get("/v1/models", (*named, BEARER, foreign)).status == 403


def test_names_can_be_allowed(endpoint) -> None:
    allowed = ("Proxy.Example.org ", "192.168.7.7", "[fd00::1]")
    policy = policy_for("127.0.0.1", "127.0.0.1", "", allowed_hosts=allowed)
    made = endpoint(policy=policy)
    for host in ("proxy.example.org", "proxy.example.org:8443", "192.168.7.7", "[fd00::1]:80"):
        assert made.get("/v1/models", (("host", host),)).status == 200
    for host in ("example.org", "x.proxy.example.org", "192.168.7.8", "[fd00::2]"):
        assert made.get("/v1/models", (("host", host),)).status == 403


@pytest.mark.parametrize("name", ["*", "", "*.lan", "http://mybox", "mybox:80", "my box", "a/b"])
def test_what_is_not_a_host_name_cannot_be_allowed(name) -> None:
    with pytest.raises(InvalidParameter) as refused:
        policy_for("127.0.0.1", "127.0.0.1", "", allowed_hosts=[name])
    assert refused.value.param == "allow_host" and refused.value.exit_code == 2


def test_names_come_neither_from_dns_nor_from_dhcp(monkeypatch) -> None:
    """Others control those, and could add a name of theirs to the accepted ones."""

    def never(*_):
        raise AssertionError("a name was looked up")

    for name in ("getfqdn", "gethostbyaddr", "getnameinfo", "gethostbyname", "getaddrinfo"):
        monkeypatch.setattr(security.socket, name, never)
    policy_for("mybox.lan", "192.168.1.5", KEY)


@pytest.mark.parametrize("key", ["short", "fifteen-letters"])
def test_off_loopback_a_key_of_your_own_is_long(key) -> None:
    with pytest.raises(InvalidParameter, match="16") as refused:
        policy_for("0.0.0.0", "0.0.0.0", key)
    assert refused.value.exit_code == 2 and "--generate-key" in refused.value.hint
    assert key not in str(refused.value)
    assert policy_for("127.0.0.1", "127.0.0.1", key).key == key


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\n"])
def test_a_key_that_fits_no_header_is_refused(key) -> None:
    with pytest.raises(InvalidParameter):
        policy_for("127.0.0.1", "127.0.0.1", key)


def test_nothing_but_http_is_served(endpoint) -> None:
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/models", "headers": []}
    asyncio.run(endpoint().app(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]
