"""The life of a real `hearth serve`: what a signal does to those who are answered, and that nothing
is left behind.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hosts import gone, processes_in
from served import Served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")

SOON = {"HEARTH_HOST_IDLE_S": "0.2", "HEARTH_KEEP_ALIVE_S": "2"}
"""When a model that nobody asks, and a host without models, leave."""


class LeavingServer(Served):
    """A `hearth serve` whose host leaves soon after it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, SOON, ())
        self.home = home

    def open(self, method: str, path: str, body: object = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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

    def check_gone(self) -> None:
        """Require that its host and everything below it end."""
        gone([*self.family, *processes_in(self.home)])

    def draining(self) -> None:
        assert self.process.stderr is not None
        while "Finishing 1 running" not in self.process.stderr.readline():
            assert self.process.poll() is None

    def ended(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def server() -> Iterator[LeavingServer]:
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        one = LeavingServer(Path(home))
        assert len(one.family) >= 2
        try:
            yield one
        finally:
            one.process.kill()
            one.process.communicate()
            gone(one.family)


def test_what_runs_is_finished_what_is_new_is_refused_and_nothing_is_left(server) -> None:
    with closing(server.story(tokens=600)) as connection:
        response = connection.getresponse()
        first = response.readline()
        server.process.send_signal(signal.SIGTERM)
        server.draining()
        assert server.status_of("/v1/models") == (503, "close")
        assert server.status_of("/health")[0] == 503
        events = (first + response.read()).decode().split("\n\n")
    assert events[-2] == "data: [DONE]"
    reasons = [choice["finish_reason"] for event in events[:-2] for choice in _choices(event)]
    assert reasons[-1] == "length"
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said
    server.check_gone()


def test_a_second_signal_cuts_what_runs_and_nothing_is_left(server) -> None:
    with closing(server.story(tokens=1900)) as connection:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        server.draining()
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
    assert b'"code":"interrupted"' in cut.value.partial and b"[DONE]" not in cut.value.partial
    code, said = server.ended()
    assert code == 0 and "Traceback" not in said
    server.check_gone()


def test_who_is_killed_leaves_nobody_behind(server) -> None:
    with closing(server.story(tokens=1900)) as connection:
        assert connection.getresponse().readline().startswith(b"data: ")
        server.process.kill()
        server.process.wait()
    server.check_gone()


def _choices(event: str) -> list[dict[str, object]]:
    if not event.startswith("data: "):
        return []
    choices: list[dict[str, object]] = json.loads(event.removeprefix("data: "))["choices"]
    return choices
