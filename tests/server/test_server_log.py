"""`server.log`: errors, and nothing of the requests except names of ignored fields."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from endpoints import HELLO
from hearth.app.server.logs import PrivateFormatter, logging_to
from live import live

CANARY = "canary-7f3a"
FAKE_LINE = "2026-01-01 00:00:00,000 ERROR forged"


@pytest.fixture
def log(tmp_path):
    """The text that the block wrote to the log."""
    path = tmp_path / "server.log"
    with logging_to(path):
        yield lambda: path.read_text(encoding="utf-8")


def sent(method: str, url: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {url} HTTP/1.1", "Host: localhost", *lines]
    head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def chat(**fields: object) -> bytes:
    body = json.dumps({**HELLO, **fields}).encode()
    return sent("POST", "/v1/chat/completions", body, "Content-Type: application/json")


REQUESTS = {
    "prompt": chat(messages=[{"role": "user", "content": CANARY}]),
    "prompt of a stream": chat(messages=[{"role": "user", "content": CANARY}], stream=True),
    "system prompt": chat(messages=[{"role": "system", "content": CANARY}, *HELLO["messages"]]),
    "role": chat(messages=[{"role": CANARY, "content": "x"}]),
    "name of a model": chat(model=CANARY),
    "value of a field": chat(temperature=CANARY),
    "stop": chat(stop=[CANARY]),
    "user": chat(user=CANARY),
    "metadata": chat(metadata={"a": CANARY}),
    "no JSON": sent(
        "POST", "/v1/chat/completions", b"{" + CANARY.encode(), "Content-Type: application/json"
    ),
    "another type": sent(
        "POST", "/v1/chat/completions", CANARY.encode(), f"Content-Type: {CANARY}"
    ),
    "url": sent("GET", f"/v1/models/{CANARY}?{CANARY}={CANARY}"),
    "unknown url": sent("GET", f"/{CANARY}"),
    "method": sent(CANARY.upper(), "/v1/models"),
    "header": sent("GET", "/v1/models", b"", f"X-{CANARY}: {CANARY}"),
    "key": sent(
        "GET", "/v1/models", b"", f"Authorization: Bearer {CANARY}", f"X-Api-Key: {CANARY}"
    ),
    "origin": sent("GET", "/v1/models", b"", f"Origin: https://{CANARY}"),
    "host": sent("GET", "/v1/models").replace(b"localhost", CANARY.encode()),
    "no HTTP": f"{CANARY}\r\n\r\n".encode(),
    "a header that is none": sent("GET", "/v1/models", b"", f"{CANARY} {CANARY}"),
    "a chunk that is none": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CANARY.encode()
    + b"\r\n",
    "forged line": sent("GET", f"/v1/models/%0d%0a{FAKE_LINE.replace(' ', '%20')}%1b[2J"),
    "upgrade": sent("GET", "/v1/models", b"", f"Upgrade: {CANARY}", "Connection: Upgrade"),
}


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("broken", [False, True])
def test_nothing_that_was_asked_is_logged(endpoint, log, capfd, request_bytes, broken) -> None:
    """Not even when a defect makes answering fail."""
    answer = [{"text": CANARY}, {"progress": CANARY} if broken else {"finish": "stop"}]

    async def ask() -> bytes:
        async with live(endpoint(answer).app) as server:
            return await server.exchange(request_bytes)

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 ")
    out, err = capfd.readouterr()
    assert CANARY not in log() + out + err and CANARY.upper() not in log() + out + err
    assert "forged" not in log()
    assert "\x1b" not in log()


def test_of_a_defect_the_place_is_logged_and_not_its_words(endpoint, log) -> None:
    reply = endpoint([{"progress": CANARY}]).chat()
    assert reply.status == 500
    assert "Traceback" in log() and "TypeError" in log() and "fake_host.py" in log()
    assert CANARY not in log()


def test_a_line_is_a_line(log, monkeypatch) -> None:
    root = logging.getLogger()
    ours = [one for one in root.handlers if isinstance(one.formatter, PrivateFormatter)]
    monkeypatch.setattr(root, "handlers", ours)  # pytest-xdist cannot send what pytest's keep.
    logging.getLogger("x").error("first\r\n%s \x1b[2J\x9b\u2028 \ud800", FAKE_LINE)
    [line] = log().splitlines()
    assert "\\u000d\\u000a" in line and "\\u001b" in line and "\\u009b" in line


def test_causes_are_told_without_their_words(log) -> None:
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise ValueError(CANARY) from error
    except ValueError:
        logging.getLogger("x").exception("it broke")
    text = log()
    assert text.index("KeyError") < text.index("ValueError") and CANARY not in text


def test_a_stream_that_failed_on_purpose_is_no_news(endpoint, log) -> None:
    made = endpoint([{"text": "Hi"}, {"error": {"code": "worker_died", "message": "It died."}}])

    async def ask() -> bytes:
        async with live(made.app) as server:
            return await server.exchange(chat(stream=True))

    assert b"worker_died" in asyncio.run(ask())
    assert log() == ""


def test_a_field_without_effect_is_logged_once(endpoint, log) -> None:
    made = endpoint(*[[{"finish": "stop"}]] * 3)
    for _ in range(3):
        assert made.chat(unknown_field=CANARY).status == 200
    assert log().count("the field 'unknown_field' has no effect") == 1
    assert CANARY not in log()
