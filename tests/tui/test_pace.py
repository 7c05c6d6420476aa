"""The delay until a key is shown is set before Textual is imported, unless the user has set it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, sys
from hearth.app.tui.pace import set_pace
assert "textual" not in sys.modules
set_pace()
from textual import constants
print(json.dumps([constants.MAX_FPS, sys.getswitchinterval()]))
"""


@pytest.mark.parametrize(("asked", "frames"), [(None, 250), ("30", 30)])
def test_frames_come_soon_unless_the_user_says_otherwise(asked: str | None, frames: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TEXTUAL_FPS"}
    if asked is not None:
        environment["TEXTUAL_FPS"] = asked
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [frames, pytest.approx(0.001)]
