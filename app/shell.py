"""Names and paths in the commands that messages suggest."""

from __future__ import annotations

import shlex


def argument(name: str) -> str:
    """`name` as an argument that a POSIX shell and our commands take as it is. The name of a model
    comes from a file, so it may contain anything.
    """
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)
