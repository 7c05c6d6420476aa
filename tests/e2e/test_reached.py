"""A real `hearth serve --host 0.0.0.0`, reached from this machine and, through a virtual cable,
from another network namespace, which is as far away as another machine.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from commands import HEARTH, hearth

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="reads POSIX files")

HERE, THERE = "198.18.77.1", "198.18.77.2"
"""Addresses at the two ends of the cable, from the range for tests (RFC 2544)."""
ASK = """
import http.client, json, sys
address, requests = sys.argv[1], json.loads(sys.argv[2])
replies = []
for method, path, headers, body in requests:
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    replies.append([response.status, response.read().decode()])
    connection.close()
print(json.dumps(replies))
"""


class Reached:
    """A `hearth serve` on all addresses with a generated key."""

    def __init__(self, home: Path) -> None:
        environ = {**os.environ, "HEARTH_HOME": str(home), "HEARTH_HOST_IDLE_S": "0.2"}
        environ.pop("HEARTH_API_KEY", None)
        command = [*HEARTH, "serve", "--port", "0", "--host", "0.0.0.0", "--generate-key"]
        self.process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.communicate()[1]
        self.port = urlsplit(self.url).port
        key = (home / "state" / "api-key").read_text(encoding="ascii").strip()
        self.key = {"authorization": f"Bearer {key}"}

    def ended(self) -> str:
        """Stop it; what it printed for people."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hearth-") as folder:
        yield Path(folder)


@pytest.fixture
def reached(home: Path) -> Iterator[Reached]:
    server = Reached(home)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def namespace() -> Iterator[str]:
    """The name of a network namespace whose only neighbour is this machine."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    name = f"hearth{os.getpid()}"
    ours, theirs = f"h{os.getpid()}a", f"h{os.getpid()}b"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"network namespaces are not permitted: {made.stderr.strip()}")
    try:
        for command in (
            f"ip link add {ours} type veth peer name {theirs} netns {name}",
            f"ip addr add {HERE}/30 dev {ours}",
            f"ip link set {ours} up",
            f"ip -n {name} addr add {THERE}/30 dev {theirs}",
            f"ip -n {name} link set {theirs} up",
        ):
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"virtual cables are not permitted: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def ask(address: str, path: str, **headers: str) -> int:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


def test_it_is_reached_by_name_and_by_every_address_it_prints(reached) -> None:
    entries = [entry for each in psutil.net_if_addrs().values() for entry in each]
    own = {entry.address for entry in entries if entry.family == socket.AF_INET}
    address = urlsplit(reached.url)
    assert address.hostname in own
    name = socket.gethostname()
    for host in (address.netloc, f"{name}:{reached.port}", f"localhost:{reached.port}"):
        assert ask(address.netloc, "/health", host=host) == 200
        assert ask(address.netloc, "/v1/models", host=host) == 401
        assert ask(address.netloc, "/v1/models", host=host, **reached.key) == 200
    assert ask(address.netloc, "/v1/models", host="evil.example") == 403
    printed = reached.ended()
    assert "api-key" in printed and "0.0.0.0" not in printed + reached.url


def test_it_is_reached_from_another_network_namespace(namespace, reached) -> None:
    name = {"host": f"{socket.gethostname()}:{reached.port}"}
    generate = {"model": "guide", "prompt": "Hi", "options": {"num_predict": 2}}
    generate |= {"stream": False}
    requests = [
        ["GET", "/v1/models", {}, None],
        ["GET", "/v1/models", reached.key, None],
        ["GET", "/v1/models", reached.key | name, None],
        ["GET", "/v1/models", name, None],
        ["GET", "/", name, None],
        ["POST", "/api/generate", reached.key, json.dumps(generate)],
    ]
    command = [sys.executable, "-c", ASK, f"{HERE}:{reached.port}", json.dumps(requests)]
    found = subprocess.run(
        ["ip", "netns", "exec", namespace, *command], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    replies = json.loads(found.stdout)
    assert [status for status, _ in replies] == [401, 200, 200, 401, 200, 200]
    assert "guide" not in replies[4][1] and "API key" in replies[4][1]
    assert json.loads(replies[5][1])["done"] is True
    assert f"http://{HERE}:{reached.port}/v1" in reached.url + reached.ended()


def test_without_a_key_it_does_not_start(home) -> None:
    environ = {**os.environ, "HEARTH_HOME": str(home)}
    environ.pop("HEARTH_API_KEY", None)
    ended = hearth(environ, "serve", "--host", "0.0.0.0", "--port", "0")
    assert ended.returncode == 2 and "--generate-key" in ended.stderr and not ended.stdout
