"""The command in a real terminal: editing, Ctrl+C, Ctrl+D, and text that attacks the terminal."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.timeout(90)

# Control sequences; strings up to their end (or all the rest); other escapes; controls.
STEERING = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"
    rb"|\x1b."
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]",
    re.DOTALL,
)
HOSTILE = (
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1bc\x1b[?1049h\x1b[6n",
    "\x9b31m\x9d0;owned\x9c\x90q\x9c",
    "\r\x08\x08\x7f\x00\x0b\x0c",
    "\u202eevil\u202c\u2066\u2069\u200b\u2028\u2029",
    "\U000e0069\U000e0067\ufeff\ufe0f",
)
FORBIDDEN = (
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\U000e0069",
    "\ufeff",
    "\x9b",
    "\x9d",
    "\x90",
    "\x9c",
)


def steering(seen: bytes) -> set[bytes]:
    """The escape sequences and controls that a terminal would obey."""
    return set(STEERING.findall(seen))


def test_a_chat_in_a_terminal(terminal, requests) -> None:
    chat = terminal("chat", "--plain", answers=[[{"text": "A"}, {"text": "B"}, {"finish": "stop"}]])
    chat.expect("tiny · F32 · context 512 · f16 KV")
    chat.expect("> ")
    chat.send("hello")
    chat.expect("AB\r\n")
    chat.expect("> ")
    chat.send("again")
    chat.expect("echo: again")
    chat.expect("> ")
    chat.press("D")
    assert chat.finish() == 0
    assert [len(request["messages"]) for request in requests()] == [1, 3]


def test_ctrl_c_stops_an_answer_keeps_its_text_and_the_chat(terminal, requests) -> None:
    chat = terminal("chat", "--plain", answers=[[{"text": "Half"}, {"wait": True}]])
    chat.expect("> ")
    chat.send("hello")
    chat.expect("Half")
    chat.press("C")
    chat.expect("(stopped)")
    chat.expect("> ")
    chat.send("go on")
    chat.expect("echo: go on")
    chat.expect("> ")
    chat.interrupt_until("Ctrl+D or /quit leaves.")
    chat.send("/quit")
    assert chat.finish() == 0
    assert [m["content"] for m in requests()[1]["messages"]] == ["hello", "Half", "go on"]


def test_ctrl_c_ends_a_run_with_130_and_keeps_its_text(terminal) -> None:
    run = terminal("run", "tiny", "hello", answers=[[{"text": "Half"}, {"wait": True}]])
    run.expect("Half")
    run.press("C")
    assert run.finish() == 130
    assert b"Traceback" not in run.seen
    assert b"(stopped)" in run.seen


def test_ctrl_c_while_a_model_loads_gives_up(terminal, tmp_path) -> None:
    run = terminal("run", "tiny", "hello", loads_forever=True)
    run.expect("loading")
    run.press("C")
    assert run.finish() == 130
    assert b"Traceback" not in run.seen


@pytest.mark.parametrize("command", [(), ("run", "tiny"), ("chat",)], ids=["", "run", "chat"])
def test_without_a_prompt_the_app_opens(terminal, command) -> None:
    app = terminal(*command)
    app.expect("Message, or /")
    app.press("Q")
    assert app.finish() == 0
    assert b"\x1b[?1049l" in app.seen, "the screen of before is there again"


@pytest.mark.parametrize(
    "command", [("run", "tiny", "x"), ("chat", "--plain")], ids=["run", "chat"]
)
def test_hostile_text_steers_no_terminal(terminal, command) -> None:
    def session(pieces: list[str], message: str) -> bytes:
        failed = {"error": {"code": "worker_died", "message": message, "hint": message}}
        answers = [
            [{"prompt_tokens": 1, "notices": [message]}, *({"text": p} for p in pieces), failed]
        ]
        info = {"name": message, "notices": [message], "quantization": message}
        opened = terminal(*command, answers=answers, info=info)
        if command == ("chat", "--plain"):
            opened.expect("> ")
            opened.send("x")
            opened.expect("error: ")
            opened.expect("> ")
            opened.press("D")
        opened.finish()
        return opened.seen

    attack = "".join(HOSTILE)
    benign = session(["good"], "good")
    hostile = session([*HOSTILE, *attack], attack)
    assert steering(hostile) <= steering(benign)
    text = hostile.decode("utf-8")
    assert [character for character in FORBIDDEN if character in text] == []
    assert "\u241b]52;c;cm0gLXJm\ufffd" in text


def test_a_hostile_file_name_steers_no_terminal(terminal, home, tiny_model) -> None:
    models = home / "data" / "models"
    (models / "evil\x1b]0;owned\x07.gguf").write_bytes(tiny_model.read_bytes())
    for command in (
        ("list",),
        ("list", "--json"),
        ("run", "evil\x1b]0;x\x07", "hi"),
        ("doctor\x1b[2J",),
    ):
        opened = terminal(*command, env={"NO_COLOR": "1", "HEARTH_DEBUG": "1"})
        opened.finish()
        assert steering(opened.seen) == set(), command


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_plain_terminals_get_no_styles(terminal, env) -> None:
    run = terminal("run", "tiny", "hi", env=env)
    assert run.finish() == 0
    assert steering(run.seen) == set()
