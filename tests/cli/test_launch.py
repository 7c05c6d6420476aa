"""`hearth launch`: how each client is started, with a server that runs and with one of its own."""

from __future__ import annotations

import http.client
import json
import shlex
import sys
import threading
import tomllib
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from hearth.app.clients import CLIENTS

KEY = "a-key-of-our-own"
CLIENT = f"""#!{sys.executable}
import http.client, json, os, sys, urllib.parse
root = os.environ.get("ANTHROPIC_BASE_URL", "")
status = 0
if root:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(root).netloc, timeout=30)
    token = os.environ["ANTHROPIC_AUTH_TOKEN"]
    connection.request("GET", "/v1/models", headers={{"authorization": "Bearer " + token}})
    status = connection.getresponse().status
with open(os.environ["SEEN"], "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environ": dict(os.environ), "status": status}}, file)
sys.exit(7)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="clients here are scripts")


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Puts a stand-in for every client on the PATH; gives what the last one was started with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for client in CLIENTS.values():
        (folder / client.program).write_text(CLIENT)
        (folder / client.program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of-another-service")
    monkeypatch.delenv("HEARTH_API_KEY", raising=False)
    return lambda: json.loads((tmp_path / "seen.json").read_text())


@pytest.fixture
def running(serving, monkeypatch):
    """A server at the port of the settings; gives its URL without a path."""

    def start(*arguments: str) -> str:
        root = serving(*arguments).url.removesuffix("/v1")
        monkeypatch.setenv("HEARTH_SERVE_PORT", str(urlsplit(root).port))
        return root

    return start


@contextmanager
def other_server(answer):
    """A server that answers every GET with the JSON of `answer`; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def configured(arguments):
    """The configuration that Codex makes of its `-c` options."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    assert all(option == "-c" for option, _ in pairs)
    return tomllib.loads("\n".join(arguments[1::2]))


def test_claude_gets_the_running_server(hearth, running, seen) -> None:
    root = running()
    assert hearth("launch", "claude", "tiny", "--", "-p", "hi there").code == 7
    environ = seen()["environ"]
    assert seen()["arguments"] == ["-p", "hi there"] and seen()["status"] == 200
    assert environ["ANTHROPIC_BASE_URL"] == root and environ["ANTHROPIC_MODEL"] == "tiny"
    assert environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "tiny"
    assert environ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "ANTHROPIC_API_KEY" not in environ


def test_codex_gets_the_running_server(hearth, running, seen) -> None:
    root = running()
    assert hearth("launch", "codex").code == 7
    config = configured(seen()["arguments"])
    provider = config["model_providers"]["hearth"]
    assert (config["model"], config["model_provider"]) == ("tiny", "hearth")
    assert (provider["base_url"], provider["wire_api"]) == (f"{root}/v1", "responses")
    assert config["analytics"]["enabled"] is False and "env_key" not in provider


def test_opencode_gets_the_running_server(hearth, running, seen) -> None:
    root = running()
    assert hearth("launch", "opencode", "--", "run", "hi").code == 7
    config = json.loads(seen()["environ"]["OPENCODE_CONFIG_CONTENT"])
    provider = config["provider"]["hearth"]
    assert seen()["arguments"] == ["run", "hi"] and config["model"] == "hearth/tiny"
    assert provider["options"]["baseURL"] == f"{root}/v1"
    assert provider["models"]["tiny"]["limit"]["context"] > 0


def test_aider_gets_the_running_server(hearth, running, seen) -> None:
    root = running()
    assert hearth("launch", "aider").code == 7
    arguments = seen()["arguments"]
    assert arguments[arguments.index("--openai-api-base") + 1] == f"{root}/v1"
    assert arguments[arguments.index("--model") + 1] == "openai/tiny"
    assert "--no-analytics" in arguments


@pytest.mark.parametrize("client", CLIENTS)
def test_the_kept_key_is_passed_on_and_not_printed(hearth, running, seen, home, client) -> None:
    running("--generate-key")
    path = home / "state" / "api-key"
    key = path.read_text().strip()
    printed = hearth("launch", client, "--print")
    assert printed.code == 0 and key not in printed.out + printed.err
    assert f"$(cat {path})" in printed.out
    assert hearth("launch", client).code == 7
    assert key in seen()["environ"].values() and key not in str(seen()["arguments"])


def test_a_key_of_the_environment_is_used(hearth, running, seen, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_API_KEY", KEY)
    running()
    printed = hearth("launch", "claude", "--print").out
    assert 'export ANTHROPIC_AUTH_TOKEN="$HEARTH_API_KEY"' in printed
    monkeypatch.setenv("HEARTH_API_KEY", f"{KEY}-of-others")
    refused = hearth("launch", "claude")
    assert refused.code == 1 and "another API key" in refused.err


def test_what_is_printed_starts_the_client(hearth, seen, monkeypatch) -> None:
    """Without a server it is for the one that the settings name."""
    monkeypatch.setenv("HEARTH_SERVE_PORT", "1")
    result = hearth("launch", "claude", "--print", "--", "-p", "it's me")
    *lines, command = result.out.splitlines()
    assert result.code == 0 and "hearth serve" in result.err
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:1" in lines
    assert shlex.split(command) == ["claude", "-p", "it's me"]


@pytest.mark.parametrize("health", [{"status": "ok"}, {"status": "ok", "version": "1.2"}])
def test_another_server_with_a_health_check_is_not_used(hearth, seen, monkeypatch, health) -> None:
    with other_server(health) as port:
        monkeypatch.setenv("HEARTH_SERVE_PORT", str(port))
        result = hearth("launch", "claude", "--print")
    assert result.code == 0 and "No Hearth server is running" in result.err


def test_a_client_that_is_missing_is_reported_with_its_installation(hearth, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name, client in CLIENTS.items():
        result = hearth("launch", name)
        assert result.code == 1 and client.install in result.err
    assert hearth("launch", "emacs").code == 2


def test_a_model_that_the_server_lacks_is_reported(hearth, running, seen) -> None:
    running()
    result = hearth("launch", "claude", "no-such-model")
    assert result.code == 1 and "no-such-model" in result.err


def test_a_context_that_is_too_small_is_reported(hearth, running, seen) -> None:
    running()
    assert "512 tokens" in hearth("launch", "claude").err


@pytest.mark.parametrize("print_it", [(), ("--print",)])
def test_flags_that_a_running_server_does_not_take_are_named(
    hearth, running, seen, print_it
) -> None:
    root = running()
    said = hearth("launch", "claude", "--ctx", "512", "--backend", "native", *print_it).err
    assert f"--ctx, --backend: no effect, as a server is already running at {root}." in said
    assert "no effect" not in hearth("launch", "claude", *print_it).err


def test_without_a_server_it_has_one_of_its_own(hearth, seen, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_SERVE_PORT", "1")
    monkeypatch.setenv("HEARTH_HOST_IDLE_S", "0.1")
    assert hearth("launch", "claude", "guide", "--ctx", "512").code == 7
    environ = seen()["environ"]
    assert seen()["status"] == 200 and environ["ANTHROPIC_MODEL"] == "guide"
    assert environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "512"
    address = urlsplit(environ["ANTHROPIC_BASE_URL"]).netloc
    with (
        closing(http.client.HTTPConnection(address)) as connection,
        pytest.raises(ConnectionRefusedError),
    ):
        connection.request("GET", "/health")
