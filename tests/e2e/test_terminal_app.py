"""The terminal app as a person uses it: the bundled model, the real host, a real terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drawn import SIZE, AppTerminal
from gguf_builder import tiny_llama, tiny_vocabulary
from terminal_session import ALT_DOWN, ALT_UP, ENTER, ESCAPE, RIGHT, TerminalSession, control
from tiny_folders import tiny_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")

ENDLESS = "endless"
NO_END = {"HEARTH_LOGIT_BIAS": f"{tiny_vocabulary().id_of('<|end|>')}=-100", "HEARTH_SEED": "1"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[TerminalSession]:
    env = {"HEARTH_KEEP_ALIVE_S": "1", "HEARTH_MIN_P": "0"}
    made = TerminalSession(tmp_path / "h", SIZE, env)
    yield made
    made.close()


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """A model that does not end by itself: random weights, and a long context."""
    return str(tiny_llama(tmp_path / f"{ENDLESS}.gguf", context=32768))


@pytest.fixture
def endless_folder(tmp_path: Path) -> str:
    """The same as a folder of safetensors."""
    return str(tiny_folder("qwen3", tmp_path / ENDLESS, max_position_embeddings=32768))


def said(session: TerminalSession, title: str) -> str:
    """What was answered so far in the chat with this title."""
    answer = session.answer(title)
    return answer.content if answer is not None else ""


def leave(app: AppTerminal) -> None:
    """Quit; the terminal is as it was."""
    assert app.leave() == 0
    app.check_left()


def test_a_first_conversation(session: TerminalSession) -> None:
    app = session.open()
    app.say("How do I download a model?")
    app.until_shown("tok/s")
    app.say("/rename downloads")
    app.until(lambda: session.messages("downloads"))
    first = said(session, "downloads")
    assert first

    app.say("/edit")
    app.until_shown("Edit (user)")
    app.type(" Please")
    app.until_shown("model? Please")
    app.type(control("S"))
    app.until_shown("2/2")
    app.until(lambda: session.messages("downloads")[-1].state == "complete")
    assert session.messages("downloads")[0].content == "How do I download a model? Please"

    app.type(control("N"))
    app.until(lambda: "2/2" not in app.text)
    app.type(control("F"))
    app.until_shown("esc close")
    app.type("Please")
    app.until_shown(" found")
    app.type(ENTER)
    app.until_shown("2/2")
    leave(app)
    app = session.open()
    app.until_shown("downloads")
    app.type(ALT_DOWN)
    app.until_shown("Please", "2/2")
    assert app.leave() == 0
    with session.chats() as chats:
        (thread,) = chats.threads()
        _, tree = chats.tree(thread.id)
        assert first in [message.content for message in tree]


def test_a_folder_on_the_native_backend_is_asked_and_stopped(
    session: TerminalSession, endless_folder: str
) -> None:
    app = session.open("chat", endless_folder, "--backend", "native", **NO_END)
    app.say("hello")
    app.until(lambda: said(session, "hello"))
    first = len(said(session, "hello"))
    app.until(lambda: len(said(session, "hello")) > first)
    stats = session.stats()
    assert stats is not None
    assert [(one.name, one.info and one.info.backend) for one in stats.workers] == [
        (ENDLESS, "native")
    ]
    app.type(ESCAPE)
    app.until_shown("Stopped.")
    assert session.messages("hello")[-1].state == "stopped"
    app.say("/set max_tokens 5")
    app.say("again")
    app.until_shown("limit of tokens")
    last = session.messages("hello")[-1]
    assert (last.state, last.finish_reason) == ("complete", "length")
    leave(app)


def test_two_chats_answer_while_one_looks_from_one_to_the_other(
    session: TerminalSession, endless: str
) -> None:
    app = session.open("chat", endless, **NO_END)
    app.say("first")
    app.until(lambda: said(session, "first"))
    app.type(control("N"))
    app.until_shown("Tab goes to these prompts")
    app.say("second")
    app.until(lambda: said(session, "second"))
    before = len(said(session, "first"))
    app.until(lambda: len(said(session, "first")) > before)
    app.type(ALT_DOWN)
    app.type(ESCAPE)
    app.until_shown("Stopped.")
    app.type(ALT_UP)
    app.until(lambda: "Stopped." not in app.text)
    app.type(control("Q"))
    app.until_shown("Stop and quit")
    app.type(2 * RIGHT + ENTER)
    assert app.terminal.finish() == 0
    states = {title: session.messages(title)[-1].state for title in ("first", "second")}
    assert states == {"first": "stopped", "second": "stopped"}


def test_a_killed_app_has_kept_what_was_said(session: TerminalSession, endless: str) -> None:
    app = session.open("chat", endless, **NO_END)
    app.say("hello")
    app.until(lambda: len(said(session, "hello")) > 50)
    os.kill(app.pid, signal.SIGKILL)
    app.terminal.finish()
    kept = said(session, "hello")
    assert len(kept) > 50
    app = session.open("chat", endless, **NO_END)
    app.until_shown("hello")
    app.type(ALT_DOWN)
    app.until_shown("Stopped.")
    assert session.messages("hello")[0].content == "hello"
    assert said(session, "hello") == kept
    assert app.leave() == 0


@pytest.mark.parametrize("module", ["hearth.backends.host", "hearth.backends.worker"])
def test_a_killed_process_is_told_and_the_next_question_works(
    session: TerminalSession, endless: str, module: str
) -> None:
    app = session.open("chat", endless, **NO_END)
    app.say("hello")
    app.until(lambda: said(session, "hello"))
    session.kill(module)
    app.until(lambda: session.messages("hello")[-1].state == "failed")
    assert said(session, "hello")
    error = session.messages("hello")[-1].error
    assert error
    app.until_shown(error[:20])
    app.say("/set max_tokens 5")
    app.say("again")
    app.until_shown("limit of tokens")
    assert session.messages("hello")[-1].finish_reason == "length"
    leave(app)
