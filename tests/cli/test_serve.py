"""`hearth serve`: what it refuses, what it prints, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import fake_host
from hosts import wait_until

WAITS = [{"prompt_tokens": 1}, {"text": "Hi"}, {"wait": True}]
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Serving:
    """A `hearth serve` over a scripted host, in a process of its own."""

    def __init__(self, script: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, fake_host.__file__, str(script), "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.address = urlsplit(self.url).netloc

    def open(self, method: str, path: str, body: object = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        headers = {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def end(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Exit code and what was said on stderr."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def serving(home: Path, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*arguments: str, **script: object) -> Serving:
        file = tmp_path / "script.json"
        file.write_text(json.dumps(script), encoding="utf-8")
        started.append(Serving(file, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_cleanly(serving, number) -> None:
    server = serving("tiny")
    assert server.url.startswith("http://127.0.0.1:") and server.url.endswith("/v1")
    with closing(server.open("GET", "/health")) as connection:
        assert connection.getresponse().status == 200
    server.end(number)
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_the_first_signal_lets_requests_finish_the_second_ends_them(serving) -> None:
    server = serving(answers=[WAITS])
    with closing(server.open("POST", "/v1/chat/completions", HELLO)) as connection:
        response = connection.getresponse()
        assert response.status == 200 and response.readline().startswith(b"data: ")
        server.end(signal.SIGINT)
        assert server.process.stderr is not None
        while "Finishing 1 running" not in server.process.stderr.readline():
            assert server.process.poll() is None
        server.end(signal.SIGINT)
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
        assert b'"code":"interrupted"' in cut.value.partial
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_who_waits_for_a_whole_answer_is_told_that_the_endpoint_ended(serving, home) -> None:
    server = serving("tiny", answers=[WAITS], log=str(home / "asked"))
    body = {**HELLO, "stream": False}
    with closing(server.open("POST", "/v1/chat/completions", body)) as connection:
        wait_until((home / "asked").exists)
        server.end(signal.SIGINT)
        assert server.process.stderr is not None
        while "Finishing 1 running" not in server.process.stderr.readline():
            assert server.process.poll() is None
        server.end(signal.SIGINT)
        response = connection.getresponse()
        assert (response.status, response.getheader("x-should-retry")) == (503, "false")
        assert json.loads(response.read())["error"]["code"] == "interrupted"
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said


def test_what_goes_wrong_is_logged_in_a_file(serving, home) -> None:
    server = serving(answers=[[{"progress": "nonsense"}]])
    body = {**HELLO, "stream": False}
    with closing(server.open("POST", "/v1/chat/completions", body)) as connection:
        response = connection.getresponse()
        assert response.status == 500 and b"server.log" in response.read()
    assert "Traceback" in (home / "log" / "server.log").read_text(encoding="utf-8")


def test_a_busy_port_is_said_with_what_to_do(hearth) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = hearth("serve", "--port", str(port))
    assert result.code == 1
    assert f"127.0.0.1:{port}" in result.err and "in use" in result.err
    assert "--port" in result.err and "Traceback" not in result.err


def test_off_loopback_without_a_key_it_does_not_start(hearth, monkeypatch) -> None:
    monkeypatch.delenv("HEARTH_API_KEY", raising=False)
    result = hearth("serve", "--host", "0.0.0.0", "--port", "0")
    assert result.code == 2 and "HEARTH_API_KEY" in result.err
    assert result.host.attached == 0


def test_an_unknown_model_or_address_is_refused(hearth) -> None:
    assert hearth("serve", "nobody", "--port", "0").code == 3
    assert hearth("serve", "--host", "203.0.113.1", "--port", "0").code == 1
    assert hearth("serve", "--port", "70000").code == 2


def test_a_model_that_does_not_load_ends_the_command(serving) -> None:
    info = {"error": {"code": "does_not_fit", "message": "It needs 9 GB; there are 4 GB."}}
    code, said = serving("tiny", info=info).ended()
    assert code == 4 and "9 GB" in said and "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_the_key_of_the_environment_holds(serving, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_API_KEY", "a-key")
    server = serving()
    with closing(server.open("GET", "/v1/models")) as connection:
        assert connection.getresponse().status == 401
