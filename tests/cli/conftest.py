"""Runs `hearth` over a scripted host: in this process, in another, or in a terminal (pty)."""

from __future__ import annotations

import http.client
import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import fake_host
from hearth.app.cli.main import main
from hearth.app.jobs import job
from hearth.app.jobs.child import Reporter, Work
from hearth.backends.host import client
from terminals import Terminal, open_terminal


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str
    host: fake_host.FakeHost

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class NoTerminal(io.TextIOWrapper):
    """stdin that is a pipe."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


class Keyboard(NoTerminal):
    """stdin that is a terminal at which nobody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HEARTH_HOME whose library holds "tiny", which is the default model."""
    models = tmp_path / "home" / "data" / "models"
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    monkeypatch.setenv("HEARTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEARTH_MODEL", "tiny")
    monkeypatch.delenv("HEARTH_DEBUG", raising=False)
    return tmp_path / "home"


@pytest.fixture
def hearth(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs a command in this process; stdout and stderr are pipes, and stdin is one too if `stdin`
    is given.
    """

    def run(*args: str, stdin: str | bytes | None = None, **script: Any) -> Result:
        fake = fake_host.FakeHost(script)
        monkeypatch.setattr(client, "HostClient", fake)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", Keyboard(b"") if data is None else NoTerminal(data))
        capsys.readouterr()
        code = main(list(args))
        out, err = capsys.readouterr()
        return Result(code, out, err, fake)

    return run


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done here: PyTorch is imported once, and not by each."""

    def run_job(work: Work, question: dict[str, Any], *_: Any) -> Any:
        answer = work(json.loads(json.dumps(question)), Reporter(io.BytesIO()))
        return json.loads(json.dumps(answer))

    monkeypatch.setattr(job, "run_job", run_job)


@pytest.fixture
def terminal(home: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts a command in a pseudo-terminal over a scripted host."""
    if sys.platform == "win32":
        pytest.skip("there are no pseudo-terminals here")
    opened: list[Terminal] = []

    def start(*args: str, env: dict[str, str] | None = None, **script: Any) -> Terminal:
        file = tmp_path / f"script{len(opened)}.json"
        file.write_text(
            json.dumps({"log": str(tmp_path / "requests.jsonl"), **script}), encoding="utf-8"
        )
        command = [sys.executable, str(Path(fake_host.__file__)), str(file), *args]
        opened.append(open_terminal(command, env))
        return opened[-1]

    yield start
    for running in opened:
        running.close()


@pytest.fixture
def requests(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """What the scripted host of `terminal` was asked."""

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]

    return read


class Serving:
    """A `hearth serve` over a scripted host, in a process of its own."""

    def __init__(self, script: Path, *arguments: str, wait: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, fake_host.__file__, str(script), "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip() if wait else ""
        self.address = urlsplit(self.url).netloc

    def open(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        headers = {"content-type": "application/json", **(headers or {})}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def at(self, file: Path, path: str) -> tuple[int, object]:
        """Status of the answer at a Unix socket, and the "status" in its body."""
        connection = http.client.HTTPConnection("localhost", timeout=30)
        with closing(connection), socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.connect(str(file))
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read()).get("status")

    def end(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Exit code and what was said on stderr."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def serving(home: Path, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*arguments: str, wait: bool = True, **script: object) -> Serving:
        file = tmp_path / "script.json"
        file.write_text(json.dumps(script), encoding="utf-8")
        started.append(Serving(file, *arguments, wait=wait))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()
