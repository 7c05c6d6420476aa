"""Nothing leaves this machine: neither at the first start, nor with `--offline`, nor where there is
no network at all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drawn import AppTerminal
from sockets import guarded_env

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here")

KEYS_OF_SCREENS = ("\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~", "\x1b[18~", "\x1b[19~", "\x1bOQ")
"""F3 to F8, and F2, which is the chat."""
NAMES = (
    "Recommended",
    "F16",
    "host process",
    "Last requests",
    "search",
    "llama.cpp",
    "Message, or",
)


@pytest.mark.parametrize("arguments", [("chat", "guide"), ("--offline",)])
def test_nobody_is_asked(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    env = {"HEARTH_HOME": str(tmp_path / "h"), "HEARTH_KEEP_ALIVE_S": "1", **guarded_env(tmp_path)}
    with AppTerminal(arguments, env) as app:
        app.until_ready()
        app.say("Is my data sent anywhere?")
        app.until_shown("tok/s")
        for key, name in zip(KEYS_OF_SCREENS, NAMES, strict=True):
            app.type(key)
            app.until_shown(name)
        assert app.leave() == 0
    noted = (tmp_path / "sockets").read_text().splitlines()
    began = [line for line in noted if line.split()[1] == "began"]
    assert [line for line in noted if line not in began] == []
    for process in ("hearth.app.cli.main", "hearth.backends.host", "hearth.backends.worker"):
        assert any(process in line for line in began), process


def test_it_answers_where_there_is_no_network(tmp_path: Path) -> None:
    unshare = [shutil.which("unshare") or "unshare", "-rn"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespaces may be made here")
    env = {"HEARTH_HOME": str(tmp_path / "h"), "HEARTH_KEEP_ALIVE_S": "1"}
    with AppTerminal(["chat", "guide"], env, wrapper=unshare) as app:
        app.until_ready()
        app.say("Is my data sent anywhere?")
        app.until_shown("tok/s")
        assert app.leave() == 0
        app.check_left()
