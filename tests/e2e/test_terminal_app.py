"""The terminal app as a person uses it: the bundled model, the real host, a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drawn import AppTerminal
from gguf_builder import tiny_llama, tiny_vocabulary
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage
from hearth.app.paths import find_paths
from tiny_folders import tiny_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")

ESCAPE, ALT_DOWN, ALT_UP, CTRL_N, CTRL_F = "\x1b", "\x1b[1;3B", "\x1b[1;3A", "\x0e", "\x06"
RIGHT = "\x1b[C"
ENDLESS = "endless"
NO_END = {"HEARTH_LOGIT_BIAS": f"{tiny_vocabulary().id_of('<|end|>')}=-100", "HEARTH_SEED": "1"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "h"


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A model that does not end by itself: random weights, and a long context."""
    return str(tiny_llama(tmp_path / f"{ENDLESS}.gguf", context=32768))


@pytest.fixture
def endless_folder(tmp_path: Path) -> str:
    """The same as a folder of safetensors."""
    return str(tiny_folder("qwen3", tmp_path / ENDLESS, max_position_embeddings=32768))


def opened(home: Path, *arguments: str) -> AppTerminal:
    env = {
        "HEARTH_HOME": str(home),
        "HEARTH_KEEP_ALIVE_S": "1",
        "HEARTH_MIN_P": "0",
        **(NO_END if ENDLESS in "".join(arguments) else {}),
    }
    app = AppTerminal(arguments, env)
    try:
        app.until_ready()
    except BaseException:
        app.terminal.close()
        raise
    return app


@contextlib.contextmanager
def chats_of(home: Path) -> Iterator[ChatStore]:
    with contextlib.closing(ChatStore(find_paths({"HEARTH_HOME": str(home)}).chats_file)) as chats:
        yield chats


def messages(home: Path, title: str) -> list[ChatMessage]:
    """Those of the chat with this title; empty while there is none."""
    with chats_of(home) as chats:
        for thread in chats.threads():
            if thread.title == title:
                return chats.path(thread.id)
    return []


def said(home: Path, title: str) -> str:
    """What was answered so far in the chat with this title."""
    found = messages(home, title)
    return found[-1].content if found and found[-1].role == "assistant" else ""


def backends(home: Path) -> dict[str, str]:
    """What runs each loaded model."""
    command = [sys.executable, "-m", "hearth.app.cli.main", "ps", "--json"]
    environ = {**os.environ, "HEARTH_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=True)
    workers = json.loads(done.stdout)["workers"]
    return {worker["name"]: worker["info"]["backend"] for worker in workers}


def processes(home: Path, module: str) -> list[psutil.Process]:
    """Those of this module that belong to `home`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            words = process.info["cmdline"] or []
            if module in words and any(word.startswith(str(home)) for word in words):
                found.append(process)
    return found


def test_a_first_conversation(home: Path) -> None:
    with opened(home) as app:
        app.say("How do I download a model?")
        app.until_shown("tok/s")
        app.say("/rename downloads")
        app.until(lambda: messages(home, "downloads"))
        first = said(home, "downloads")
        assert first

        app.say("/edit")
        app.until_shown("Edit (user)")
        app.type(" Please")
        app.until_shown("model? Please")
        app.type("\x13")  # ctrl+s
        app.until_shown("2/2")
        app.until(lambda: messages(home, "downloads")[-1].state == "complete")
        assert messages(home, "downloads")[0].content == "How do I download a model? Please"

        app.type(CTRL_N)
        app.until(lambda: "2/2" not in app.text)
        app.type(CTRL_F)
        app.until_shown("esc close")
        app.type("Please")
        app.until_shown(" found")
        app.type("\r")
        app.until_shown("2/2")
        assert app.leave() == 0
        app.check_left()
    with opened(home) as app:
        app.until_shown("downloads")
        app.type(ALT_DOWN)
        app.until_shown("Please", "2/2")
        assert app.leave() == 0
    with chats_of(home) as chats:
        (thread,) = chats.threads()
        _, tree = chats.tree(thread.id)
        assert first in [message.content for message in tree]


def test_stopped_with_escape_the_text_stays(home: Path, endless: str) -> None:
    with opened(home, "chat", endless) as app:
        app.say("hello")
        app.until(lambda: said(home, "hello"))
        app.type(ESCAPE)
        app.until_shown("Stopped.")
        assert messages(home, "hello")[-1].state == "stopped"
        kept = said(home, "hello")
        assert app.leave() == 0
    assert said(home, "hello") == kept


def test_a_folder_on_the_native_backend_is_asked_and_stopped(
    home: Path, endless_folder: str
) -> None:
    with opened(home, "chat", endless_folder, "--backend", "native") as app:
        app.say("hello")
        app.until(lambda: said(home, "hello"))
        first = len(said(home, "hello"))
        app.until(lambda: len(said(home, "hello")) > first)
        assert backends(home) == {ENDLESS: "native"}
        app.type(ESCAPE)
        app.until_shown("Stopped.")
        assert messages(home, "hello")[-1].state == "stopped"
        app.say("/set max_tokens 5")
        app.say("again")
        app.until_shown("limit of tokens")
        last = messages(home, "hello")[-1]
        assert (last.state, last.finish_reason) == ("complete", "length")
        assert app.leave() == 0
        app.check_left()


def test_two_chats_answer_while_one_looks_from_one_to_the_other(home: Path, endless: str) -> None:
    with opened(home, "chat", endless) as app:
        app.say("first")
        app.until(lambda: said(home, "first"))
        app.type(CTRL_N)
        app.until_shown("Tab goes to these prompts")
        app.say("second")
        app.until(lambda: said(home, "second"))
        before = len(said(home, "first"))
        app.until(lambda: len(said(home, "first")) > before)
        app.type(ALT_DOWN)
        app.type(ESCAPE)
        app.until_shown("Stopped.")
        app.type(ALT_UP)
        app.until(lambda: "Stopped." not in app.text)
        app.type("\x11")  # ctrl+q
        app.until_shown("Stop and quit")
        app.type(2 * RIGHT + "\r")
        assert app.terminal.finish() == 0
    states = {title: messages(home, title)[-1].state for title in ("first", "second")}
    assert states == {"first": "stopped", "second": "stopped"}


def test_a_killed_app_has_kept_what_was_said(home: Path, endless: str) -> None:
    with opened(home, "chat", endless) as app:
        app.say("hello")
        app.until(lambda: len(said(home, "hello")) > 50)
        os.kill(app.pid, signal.SIGKILL)
        app.terminal.finish()
    kept = said(home, "hello")
    assert len(kept) > 50
    with opened(home, "chat", endless) as app:
        app.until_shown("hello")
        app.type(ALT_DOWN)
        app.until_shown("Stopped.")
        assert messages(home, "hello")[0].content == "hello"
        assert said(home, "hello") == kept
        assert app.leave() == 0


@pytest.mark.parametrize("module", ["hearth.backends.host", "hearth.backends.worker"])
def test_a_killed_process_is_told_and_the_next_question_works(
    home: Path, endless: str, module: str
) -> None:
    with opened(home, "chat", endless) as app:
        app.say("hello")
        app.until(lambda: said(home, "hello"))
        for process in processes(home, module):
            process.kill()
        app.until(lambda: messages(home, "hello")[-1].state == "failed")
        assert said(home, "hello")
        error = messages(home, "hello")[-1].error
        assert error
        app.until_shown(error[:20])
        app.say("/set max_tokens 5")
        app.say("again")
        app.until_shown("limit of tokens")
        assert messages(home, "hello")[-1].finish_reason == "length"
        assert app.leave() == 0
        app.check_left()
