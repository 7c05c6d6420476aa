"""`hearth serve`: what it refuses, what it prints, and how it ends."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hosts import wait_until

WAITS = [{"prompt_tokens": 1}, {"text": "Hi"}, {"wait": True}]
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_cleanly(serving, number) -> None:
    server = serving("tiny")
    assert server.url.startswith("http://127.0.0.1:") and server.url.endswith("/v1")
    root = server.url.removesuffix("/v1")
    with closing(server.open("GET", "/health")) as connection:
        assert connection.getresponse().status == 200
    server.end(number)
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said
    assert f"OpenAI clients: {root}/v1;" in said and f"Ollama clients: {root}." in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_the_first_signal_lets_requests_finish_the_second_ends_them(serving) -> None:
    server = serving(answers=[WAITS])
    with closing(server.open("POST", "/v1/chat/completions", HELLO)) as connection:
        response = connection.getresponse()
        assert response.status == 200 and response.readline().startswith(b"data: ")
        server.end(signal.SIGTERM)
        assert server.process.stderr is not None
        while "Finishing 1 running" not in server.process.stderr.readline():
            assert server.process.poll() is None
        server.end(signal.SIGINT)
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
        assert b'"code":"interrupted"' in cut.value.partial
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
    assert "--generate-key" in result.err
    assert result.host.attached == 0


@pytest.mark.parametrize("by_setting", [True, False])
def test_a_host_name_can_be_allowed(serving, home, by_setting) -> None:
    flags = () if by_setting else ("--allow-host", "proxy.example", "--allow-host", "other.example")
    if by_setting:
        (home / "config").mkdir()
        settings = 'serve_allow_hosts = ["proxy.example", "other.example"]'
        (home / "config" / "settings.toml").write_text(settings, encoding="utf-8")
    server = serving(*flags)
    for host, status in (("proxy.example", 200), ("other.example", 200), ("evil.example", 403)):
        with closing(server.open("GET", "/v1/models", headers={"host": host})) as connection:
            assert connection.getresponse().status == status


def test_two_keys_are_one_too_many(hearth, home, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_API_KEY", "a-key")
    for flags in (("--generate-key",), ("--api-key-file", str(home / "key"))):
        result = hearth("serve", "--port", "0", *flags)
        assert result.code == 2 and "Two API keys" in result.err
    assert not (home / "state" / "api-key").exists()


def test_an_origin_is_named_in_full(hearth) -> None:
    result = hearth("serve", "--port", "0", "--cors-origin", "https://*.example.org")
    assert result.code == 2 and "--cors-origin" in result.err
    assert result.host.attached == 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_key_that_others_can_read_is_refused(hearth, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("HEARTH_API_KEY", raising=False)
    (tmp_path / "key").write_text("a-key")
    (tmp_path / "key").chmod(0o644)
    result = hearth("serve", "--port", "0", "--api-key-file", str(tmp_path / "key"))
    assert result.code == 2 and "Other users can read" in result.err and "a-key" not in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_a_generated_key_is_kept_and_never_printed(serving, home, monkeypatch) -> None:
    monkeypatch.delenv("HEARTH_API_KEY", raising=False)
    path, keys = home / "state" / "api-key", set()
    for _ in range(2):
        server = serving("--host", "0.0.0.0", "--generate-key")
        keys.add(path.read_text().strip())
        with closing(server.open("GET", "/v1/models")) as connection:
            assert connection.getresponse().status == 401
        key = {"x-api-key": path.read_text().strip()}
        with closing(server.open("GET", "/v1/models", headers=key)) as connection:
            assert connection.getresponse().status == 200
        server.end(signal.SIGTERM)
        code, said = server.ended()
        assert code == 0 and str(path) in said
        assert not any(key in said + server.url for key in keys)
        assert not any(key in _log(home) for key in keys)
    assert len(keys) == 1 and len(keys.pop()) >= 43
    assert path.stat().st_mode & 0o777 == 0o600


def _log(home: Path) -> str:
    return (home / "log" / "server.log").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")
def test_while_its_model_is_loaded_it_answers_and_says_so(serving, tmp_path_factory) -> None:
    """The address is printed when the model is there; who knows it need not wait for that."""
    path = tmp_path_factory.mktemp("s") / "hearth.sock"
    server = serving("tiny", "--uds", str(path), wait=False, loads_forever=True)
    wait_until(lambda: path.exists() and server.at(path, "/health") == (503, "loading"))
    assert server.at(path, "/v1/models")[0] == 200
    server.end(signal.SIGTERM)
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said
    assert server.process.stdout is not None and not path.exists()


def test_an_unknown_model_or_address_is_refused(hearth) -> None:
    assert hearth("serve", "nobody", "--port", "0").code == 3
    assert hearth("serve", "--host", "203.0.113.1", "--port", "0").code == 1
    impossible = hearth("serve", "--host", "foo..bar", "--port", "0")
    assert impossible.code == 1 and "cannot listen on foo..bar:0" in impossible.err
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


def test_a_file_in_place_of_the_log_folder_is_told_with_what_to_do(
    hearth: Callable[..., Any], home: Path
) -> None:
    (home / "log").touch()
    result = hearth("serve", "--port", "0")
    assert result.code == 1
    assert f"{home / 'log'} is not a folder." in result.err and "HEARTH_HOME" in result.err


@pytest.mark.parametrize(("flags", "status"), [((), 404), (("--no-manage",), 403)])
def test_clients_of_this_machine_may_manage_models_by_default(serving, flags, status) -> None:
    server = serving("tiny", *flags)
    with closing(server.open("DELETE", "/api/delete", {"model": "none"})) as connection:
        assert connection.getresponse().status == status
