"""Chat, serve and ps in three terminals: one worker for all, and each may end without harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from commands import HEARTH, hearth
from hosts import gone
from terminals import Terminal, open_terminal

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are another matter there"),
]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]


@dataclass
class FrontEnds:
    """Commands in terminals, with a HEARTH_HOME of their own."""

    environ: dict[str, str]
    terminals: list[Terminal] = field(default_factory=list)

    def open(self, *arguments: str) -> Terminal:
        self.terminals.append(open_terminal([*HEARTH, *arguments], self.environ))
        return self.terminals[-1]

    def chat(self) -> Terminal:
        chat = self.open("chat", "--plain", "guide")
        chat.expect("> ")
        return chat

    def serve(self) -> tuple[Terminal, openai.OpenAI]:
        server = self.open("serve", "guide", "--port", "0")
        server.expect("http://")
        server.expect("Press Ctrl+C to stop")
        url = server.seen.split(b"http://", 1)[1].split()[0].decode()
        return server, openai.OpenAI(
            base_url=f"http://{url}", api_key="none", max_retries=0, timeout=60
        )

    def ps(self) -> dict[str, Any]:
        done = hearth({**os.environ, **self.environ}, "ps", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def front_ends(tmp_path: Path) -> Iterator[FrontEnds]:
    made = FrontEnds({"HEARTH_HOME": str(tmp_path)})
    yield made
    found = made.ps()
    for terminal in made.terminals:
        terminal.close()
    if found["running"]:
        host = psutil.Process(found["pid"])
        family = [host, *host.children(recursive=True)]
        with contextlib.suppress(psutil.NoSuchProcess):
            host.terminate()
        gone(family)


def answered(chat: Terminal) -> None:
    """The chat answers a question and asks for the next."""
    chat.send("What is a token?")
    chat.expect("\n> ")
    assert b"token" in chat.seen.rsplit(b"What is a token?", 1)[1]


def worker_of(front_ends: FrontEnds, clients: int) -> int:
    """The only worker's process id; `clients` front ends are there beside the one that asks."""
    found = front_ends.ps()
    assert found["clients"] == clients + 1
    (worker,) = found["workers"]
    assert worker["restarts"] == 0
    return int(worker["pid"])


class Reading:
    """A long answer of the endpoint, read by a thread of its own; `at_first` is called as soon as
    the first of hundreds of chunks has come, so that the answer is certainly not over.
    """

    def __init__(
        self, client: openai.OpenAI, at_first: Callable[[], None] = lambda: None, tokens: int = 700
    ) -> None:
        self._chunks = client.chat.completions.create(
            model="guide",
            messages=STORY,
            temperature=0,
            max_tokens=tokens,
            extra_body={"ignore_eos": True},
            stream=True,
        )
        next(iter(self._chunks))
        at_first()
        self.reason: str | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for chunk in self._chunks:
                self.reason = chunk.choices[0].finish_reason or self.reason
        except Exception as error:  # noqa: BLE001 - told to the test
            self.error = error

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_one_worker_for_three_and_a_chat_that_goes_harms_nobody(front_ends) -> None:
    chat = front_ends.chat()
    _, client = front_ends.serve()
    answered(chat)
    worker = worker_of(front_ends, clients=2)
    reading = Reading(client)
    chat.send("Tell me a long story about a fox.")
    chat.process.send_signal(signal.SIGHUP)
    chat.process.wait(30)
    reading.end()
    assert (reading.reason, reading.error) == ("length", None)
    assert worker_of(front_ends, clients=1) == worker
    another = front_ends.chat()
    answered(another)
    assert worker_of(front_ends, clients=2) == worker


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_endpoint_that_goes_harms_no_chat_and_looks_finished_to_nobody(front_ends, how) -> None:
    server, client = front_ends.serve()
    chat = front_ends.chat()
    answered(chat)
    worker = worker_of(front_ends, clients=2)
    reading = Reading(client)
    chat.send("What is a token?")
    server.process.send_signal(how)
    server.finish()
    reading.end()
    if how == signal.SIGTERM:  # It let the answer finish.
        assert (reading.reason, reading.error) == ("length", None)
    else:
        assert reading.reason is None and reading.error is not None
    chat.expect("\n> ")
    answered(chat)
    assert worker_of(front_ends, clients=1) == worker


@pytest.mark.parametrize("whose", ["worker", "host"])
def test_a_death_below_is_said_and_the_terminals_go_on(front_ends, whose) -> None:
    chat = front_ends.chat()
    _, client = front_ends.serve()
    answered(chat)
    found = front_ends.ps()
    process = found["pid"] if whose == "host" else found["workers"][0]["pid"]
    reading = Reading(client, lambda: os.kill(process, signal.SIGKILL))
    reading.end()
    assert reading.reason is None
    assert isinstance(reading.error, openai.APIError)
    assert reading.error.code == {"worker": "worker_died", "host": "host_unreachable"}[whose]
    assert client.chat.completions.create(model="guide", messages=STORY, max_tokens=3).choices
    if whose == "worker":
        answered(chat)


def test_ps_that_is_killed_and_stop_harm_no_terminal(front_ends) -> None:
    chat = front_ends.chat()
    _, client = front_ends.serve()
    watcher = front_ends.open("ps")
    watcher.process.send_signal(signal.SIGKILL)
    watcher.process.wait(30)
    answered(chat)
    worker = worker_of(front_ends, clients=2)
    reading = Reading(client, tokens=1500)  # It must outlast the start of a process.
    stop = front_ends.open("stop", "guide")
    assert stop.finish() == 0 and b"unloaded guide" in stop.seen
    reading.end()
    assert reading.reason is None and reading.error is not None
    answered(chat)  # It loads the model again, and nobody had to restart anything.
    assert client.chat.completions.create(model="guide", messages=STORY, max_tokens=3).choices
    assert worker_of(front_ends, clients=2) != worker
