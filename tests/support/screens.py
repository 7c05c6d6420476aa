"""What a Textual app shows, as plain text."""

from __future__ import annotations

import os
import re
from difflib import unified_diff
from pathlib import Path
from typing import Any

from textual.app import App

SNAPSHOTS = Path(__file__).parent.parent / "tui" / "snapshots"
UPDATE = "UPDATE_SNAPSHOTS"


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def text_of(app: App[Any]) -> str:
    """Every line of the screen, without colours and without spaces at the ends."""
    lines = [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
    return "\n".join(lines).rstrip() + "\n"


def check_snapshot(app: App[Any], name: str) -> None:
    """Require that the screen equals `tests/tui/snapshots/NAME.txt`. If the variable
    UPDATE_SNAPSHOTS is set, that file is written, to be reviewed before it is committed.
    """
    check_text(text_of(app), name)


def check_text(text: str, name: str) -> None:
    """Like `check_snapshot`, for the earlier text of a screen."""
    path = SNAPSHOTS / f"{name}.txt"
    text = _DATE.sub("DATE", text)
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    diff = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="")
    assert text == kept, "\n".join(diff)


def is_as_kept(text: str, name: str) -> bool:
    """Whether `check_text` would pass, or would write `text`."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get(UPDATE) or not path.exists():
        return True
    return _DATE.sub("DATE", text) == path.read_text(encoding="utf-8")
