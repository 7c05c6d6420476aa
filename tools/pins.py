"""Writes constraints.txt: the version of every package in `.venv`, as used to run the tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# The versions that the tests ran with; `make` installs exactly these. Written by `make pins`.
# torch has no build suffix: each machine gets its own build of that version (CPU, CUDA, Apple).
"""
NOT_OURS = {"hearth-llm", "pip"}


def render(packages: list[dict[str, str]]) -> str:
    """The file's content for pip's JSON list of packages."""
    pins = {
        entry["name"].lower().replace("_", "-"): entry["version"].split("+")[0]
        for entry in packages
    }
    lines = [f"{name}=={pins[name]}\n" for name in sorted(pins) if name not in NOT_OURS]
    return HEADER + "".join(lines)


def main() -> None:
    python = str(ROOT / ".venv" / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (ROOT / "constraints.txt").write_text(render(json.loads(listed)))


if __name__ == "__main__":
    main()
