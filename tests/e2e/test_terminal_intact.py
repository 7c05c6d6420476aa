"""A worker killed in the middle of an answer at a real terminal: said in words, nothing lost."""

import sys

import pytest

from commands import HEARTH
from gguf_builder import SPECIALS, tiny_llama, tiny_vocabulary
from hosts import processes_in
from terminals import open_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")


def never_ending():
    """A bias against every token that could end an answer: random weights draw them too."""
    words = tiny_vocabulary()
    return ",".join(f"{words.id_of(token)}=-100" for token in SPECIALS)


def test_a_killed_worker_leaves_chat_and_terminal_intact(tmp_path):
    home = tmp_path / "home"
    model = tiny_llama(tmp_path / "endless.gguf", context=32768)
    command = [*HEARTH, "chat", "--plain", str(model)]
    env = {
        "HEARTH_HOME": str(home),
        "HEARTH_KEEP_ALIVE_S": "1",
        "HEARTH_MIN_P": "0",
        "HEARTH_LOGIT_BIAS": never_ending(),
    }
    chat = open_terminal(command, env)
    try:
        chat.expect("> ")
        at_prompt = chat.modes()
        chat.send("hello")
        for _ in range(3):
            chat.expect("\ufffd")  # random weights babble broken UTF-8, shown as U+FFFD
        [worker] = processes_in(home, "hearth.backends.worker")
        worker.kill()
        chat.expect("died (SIGKILL)")
        chat.expect("> ")
        assert chat.modes() == at_prompt
        chat.send("/set max_tokens 5")
        chat.expect("> ")
        chat.send("again")
        chat.expect("(cut")
        chat.expect("> ")
        chat.send("/quit")
        assert chat.finish() == 0
    finally:
        chat.close()
