"""What the scripts of the command-line agents share: a project folder, a home folder and a run.

Each agent runs twice: against a model of random weights with a long context, where only the exit
code counts, and against a scripted one, which makes one tool call and says `FOUND` only if the
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
"""Random weights, context of at least 40k tokens."""
SCRIPTED = os.environ["HEARTH_CLIENT_SCRIPTED"]
"""This agent's scripted model."""
BIN = Path(os.environ["HEARTH_CLIENT_BIN"])
PROJECT = Path(os.environ["HEARTH_CLIENT_PROJECT"])
"""Its file note.txt contains `WORD`; the scripted calls name files in it."""
WORD = "tangerine"
FOUND = "The note says tangerine."
PROMPT = "Read note.txt and say its word."
CAP = 256
"""Output tokens, where the agent has a setting for them."""
TIMEOUT_S = 300

HOME = Path(tempfile.mkdtemp(prefix="agent-"))
"""The agents' settings and sessions, instead of the user's."""


def run(program: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Run the agent in the project folder and return its stdout.

    Raises:
        subprocess.CalledProcessError: its exit code is not 0.
        subprocess.TimeoutExpired: it did not end in time.
    """
    # Its own home is all that it may know of this machine: no keys, no settings of the user's.
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
