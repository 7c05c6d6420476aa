"""Shared by the scripts of the command-line agents: a project folder, a home folder and a run.

Each agent runs twice: against a model with random weights and a long context, where only the exit
code counts, and against a scripted model, which makes one tool call and answers `FOUND` only if the
result contains the note's `WORD`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LONG = os.environ["HEARTH_CLIENT_LONG"]
"""Name of a model with random weights and a context of at least 40k tokens."""
SCRIPTED = os.environ["HEARTH_CLIENT_SCRIPTED"]
"""Name of this agent's scripted model."""
BIN = Path(os.environ["HEARTH_CLIENT_BIN"])
PROJECT = Path(os.environ["HEARTH_CLIENT_PROJECT"])
"""Project folder. Its file note.txt contains `WORD`; the scripted calls name files in it."""
WORD = "tangerine"
FOUND = "The note says tangerine."
PROMPT = "Read note.txt and say its word."
CAP = 256
"""Limit of output tokens, for agents that have such a setting."""
TIMEOUT_S = 300

HOME = Path(tempfile.mkdtemp(prefix="agent-"))
"""Home folder for the agents' settings and sessions, instead of the user's."""


def run(program: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Run the agent in the project folder and return its stdout.

    Raises:
        subprocess.CalledProcessError: its exit code is not 0.
        subprocess.TimeoutExpired: it did not end in time.
    """
    # The agent sees nothing of this machine but its own home: no keys, no settings of the user.
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    homes = {
        "HOME": str(HOME),
        "XDG_CONFIG_HOME": str(HOME / ".config"),
        "XDG_DATA_HOME": str(HOME / ".local/share"),
        "XDG_CACHE_HOME": str(HOME / ".cache"),
        "XDG_STATE_HOME": str(HOME / ".local/state"),
    }
    try:
        done = subprocess.run(
            [str(BIN / program), *arguments],
            cwd=PROJECT,
            env={**kept, **homes, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        sys.stderr.write(f"{error.stdout!r}\n{error.stderr!r}\n")
        raise
    sys.stderr.write(done.stdout + done.stderr)
    done.check_returncode()
    return done.stdout


def reset_project() -> None:
    """Put the project folder's files back."""
    PROJECT.mkdir(parents=True, exist_ok=True)
    PROJECT.joinpath("note.txt").write_text(f"the secret word is {WORD}\n")
