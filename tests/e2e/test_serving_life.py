"""The life of a real `hearth serve`: what a signal does to those who are answered, and that nothing
is left behind.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from hosts import gone

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")

SOON = {"HEARTH_HOST_IDLE_S": "0.2", "HEARTH_KEEP_ALIVE_S": "2"}
"""When a model that nobody asks, and a host without models, leave."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Served:
    """A `hearth serve` with a host of its own, which leaves soon after it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        environ = {**os.environ, "HEARTH_HOME": str(home), **SOON}
        environ.pop("HEARTH_API_KEY", None)
        command = [sys.executable, "-m", "hearth.app.cli.main", "serve", "guide", "--port", "0"]
        self.home = home
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = urlsplit(self.process.stdout.readline().strip()).netloc
        assert self.address, self.process.communicate()[1]

    def open(self, method: str, path: str, body: object = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        headers = {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def story(self, tokens: int) -> http.client.HTTPConnection:
        """A stream of exactly `tokens` tokens, under way."""
        body = {
            "model": "guide",
            "prompt": "Once",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return self.open("POST", "/v1/completions", body)

    def status_of(self, path: str) -> tuple[int, str | None]:
        with closing(self.open("GET", path)) as connection:
            response = connection.getresponse()
            return response.status, response.getheader("connection")

    def processes(self) -> list[psutil.Process]:
        """The host, which is no child of ours any more, and its workers."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error):
                words = process.info["cmdline"] or []
                if "hearth.backends.host" in words and str(self.home / "state" / "run") in words:
                    found += [process, *process.children(recursive=True)]
        return found

    def draining(self) -> None:
        assert self.process.stderr is not None
        while "Finishing 1 running" not in self.process.stderr.readline():
            assert self.process.poll() is None

    def ended(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        one = Served(Path(home))
        family = one.processes()
        assert len(family) >= 2
        try:
            yield one
        finally:
            one.process.kill()
            one.process.communicate()
            gone(family)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_runs_is_finished_what_is_new_is_refused_and_nothing_is_left(served, number) -> None:
    with closing(served.story(tokens=600)) as connection:
        response = connection.getresponse()
        first = response.readline()
        served.process.send_signal(number)
        served.draining()
        assert served.status_of("/v1/models") == (503, "close")
        assert served.status_of("/health")[0] == 503
        events = (first + response.read()).decode().split("\n\n")
    assert events[-2] == "data: [DONE]"
    reasons = [choice["finish_reason"] for event in events[:-2] for choice in _choices(event)]
    assert reasons[-1] == "length"
    code, said = served.ended()
    assert code == 0 and "Traceback" not in said
    gone(served.processes())


def test_a_second_signal_cuts_what_runs_and_nothing_is_left(served) -> None:
    with closing(served.story(tokens=1900)) as connection:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        served.process.send_signal(signal.SIGTERM)
        served.draining()
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
    assert b'"code":"interrupted"' in cut.value.partial and b"[DONE]" not in cut.value.partial
    code, said = served.ended()
    assert code == 0 and "Traceback" not in said
    gone(served.processes())


def test_who_is_killed_leaves_nobody_behind(served) -> None:
    with closing(served.story(tokens=1900)) as connection:
        assert connection.getresponse().readline().startswith(b"data: ")
        served.process.kill()
        served.process.wait()
    gone(served.processes())


def _choices(event: str) -> list[dict[str, object]]:
    if not event.startswith("data: "):
        return []
    choices: list[dict[str, object]] = json.loads(event.removeprefix("data: "))["choices"]
    return choices
