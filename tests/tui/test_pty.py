"""The terminal app in a real terminal: its output, and the state of the terminal afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import app_over_script
from drawn import ALTERNATE_OFF, ALTERNATE_ON, AppTerminal, kinds
from hearth.app.tui.open import TerminalFile
from payloads import MARKDOWN_PAYLOADS, PAYLOADS
from terminals import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")

FORBIDDEN = ("OSC 52", "OSC 8", "OSC 0", "OSC 2", "OSC 9", "OSC 777", "OSC 1337", "DCS", "APC")


def app(folder: Path, script: dict[str, Any], name: str = "home") -> AppTerminal:
    """The app over `script`, in the home `name`."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(script))
    return AppTerminal(
        [str(file)],
        {"HEARTH_HOME": str(folder / name)},
        program=[str(Path(app_over_script.__file__))],
    )


def spoken(texts: Sequence[str]) -> dict[str, Any]:
    """A script whose answers, thoughts, calls, names and errors consist of `texts`."""
    call = {"position": 0, "id": "c", "name": texts[3], "arguments": json.dumps([*texts[:20]])}
    pieces = [{"text": text + "\n\n"} for text in texts]
    return {
        "info": {"name": texts[5], "architecture": texts[6], "notices": [texts[7]]},
        "answers": [
            [{"prompt_tokens": 3, "notices": [texts[8]]}, {"reasoning": "\n".join(texts)},
             *pieces, {"call": call}, {"text": "It is over."}, {"finish": "stop"}],
            [{"prompt_tokens": 3}, {"text": "".join(texts)},
             {"error": {"code": "worker_died", "message": "Broken. " + texts[9],
                        "hint": "".join(texts) + " It ends here."}}],
        ],
    }  # fmt: skip


def session(folder: Path, texts: Sequence[str], name: str) -> bytes:
    """All output to the terminal in a conversation with such answers and titles."""
    with app(folder, spoken(texts), name) as opened:
        opened.until_ready()
        opened.say("first")
        opened.until_shown("It is over.")
        opened.say("second")
        opened.until_shown("It ends here.")  # The error is higher than the screen.
        for number, text in enumerate(texts[::40]):
            title = "".join(char if char.isprintable() else "x" for char in text)
            opened.say(f"/rename {number} {title}"[:90].rstrip())
            opened.until(lambda at=number: "Message, or /" in opened.text)
        opened.type("\x06")  # ctrl+f
        opened.until_shown("Search all chats")
        opened.type("before")
        opened.until_shown(" found")
        opened.type("\x1b")
        assert opened.leave() == 0
        opened.check_left()
        return opened.sent


def test_no_answer_reaches_the_terminal_as_anything_but_text(tmp_path: Path) -> None:
    hostile = [*PAYLOADS, *MARKDOWN_PAYLOADS]
    benign = ["before " + "x" * (len(text) + 1) for text in hostile]
    with ThreadPoolExecutor() as pool:  # Both wait for a long notice to uncover the prompt box.
        sessions = pool.map(partial(session, tmp_path), (hostile, benign), ("hostile", "benign"))
    seen, usual = map(kinds, sessions)
    assert seen <= usual
    assert not [kind for kind in seen for begin in FORBIDDEN if kind.split(" ;")[0] == begin]
    assert not [kind for kind in seen if kind.startswith(("DCS", "APC", "SOS", "PM"))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    script = {"answers": [[{"prompt_tokens": 3}, {"text": "Half an"}, {"wait": True}]]}
    with app(tmp_path, script) as opened:
        opened.until_ready()
        opened.say("first")
        opened.until_shown("Half an")
        os.kill(opened.pid, number)
        assert opened.terminal.finish() == 128 + number
        opened.check_left()
    with app(tmp_path, {}) as opened:
        opened.until_ready()
        opened.until_shown("first")
        opened.type("\x1b[1;3B")  # alt+down
        opened.until_shown("Half an")
        opened.leave()


def test_what_was_suspended_is_drawn_again_and_says_nothing(tmp_path: Path) -> None:
    with app(tmp_path, {}) as opened:
        opened.until_ready()
        opened.say("/suspend")
        opened.until(lambda: psutil.Process(opened.pid).status() == psutil.STATUS_STOPPED)
        assert ALTERNATE_OFF in opened.sent.decode("utf-8", "replace")
        os.kill(opened.pid, signal.SIGCONT)
        opened.until(lambda: opened.sent.decode("utf-8", "replace").count(ALTERNATE_ON) == 2)
        opened.until_shown("F3 library", "Message, or /", "quit")
        opened.type("\x1b[18~")  # f7
        opened.until_shown("Type to filter")
        opened.type("\x1a")  # ctrl+z
        opened.until(lambda: psutil.Process(opened.pid).status() == psutil.STATUS_STOPPED)
        os.kill(opened.pid, signal.SIGCONT)
        opened.until(lambda: opened.sent.decode("utf-8", "replace").count(ALTERNATE_ON) == 3)
        opened.until_shown("Type to filter")  # Earlier keys would be lost with the old modes.
        assert opened.leave() == 0
        opened.check_left()


def test_what_is_written_to_a_terminal_that_is_gone_is_dropped() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with TerminalFile(writes, "wb") as terminal:
        assert terminal.write(b"text") == 4


@pytest.mark.skipif(sys.platform != "linux", reason="setsid")
def test_a_terminal_that_goes_away_without_a_signal_ends_the_app(tmp_path: Path) -> None:
    script = {"answers": [[{"prompt_tokens": 3}, {"text": "Half an"}, {"wait": True}]]}
    file = tmp_path / "home.json"
    file.write_text(json.dumps(script))
    env = {"HEARTH_HOME": str(tmp_path / "home")}
    program = [str(Path(app_over_script.__file__))]
    apart = AppTerminal([str(file)], env, program=program, wrapper=["setsid", "--wait"])
    with apart as opened:
        opened.until_ready()
        opened.say("first")
        opened.until_shown("Half an")
        (process,) = psutil.Process(opened.pid).children()
    process.wait(timeout=PATIENCE_S)
    with app(tmp_path, {}) as again:
        again.until_ready()
        again.until_shown("first")
        again.leave()


def test_an_error_of_the_app_itself_is_said_on_the_normal_screen(tmp_path: Path) -> None:
    with app(tmp_path, {"breaks": "broken [red]\x1b]52;c;aGk=\x07\u202e"}) as opened:
        opened.until_ready()
        opened.type("\x0e")  # ctrl+n
        assert opened.terminal.finish() == 1
        opened.check_left()
        after = opened.sent.decode().rpartition(ALTERNATE_OFF)[2]
        assert "RuntimeError: broken [red]␛]52;c;aGk=��" in "".join(after.split("\r\n"))
        assert "hearth.log" in after
        assert not any(kind.startswith("OSC") for kind in kinds(after.encode()))
        log = (tmp_path / "home" / "log" / "hearth.log").read_text("utf-8", "replace")
        assert "Traceback" in log and "RuntimeError" in log and "broken" not in log
