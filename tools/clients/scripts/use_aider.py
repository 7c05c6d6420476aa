"""aider: one edit through `openai/` and one through `ollama_chat/`."""

from __future__ import annotations

import subprocess

from agent_runs import LONG, PROJECT, SCRIPTED, reset_project, run
from steps import API, KEY, ROOT, finish, step

ROUTES = {
    "openai/": {"OPENAI_API_BASE": API, "OPENAI_API_KEY": KEY},
    "ollama_chat/": {"OLLAMA_API_BASE": ROOT},
}
OFF = ("--analytics-disable", "--no-check-update", "--no-show-model-warnings", "--no-git")


def aider(model: str, environ: dict[str, str]) -> str:
    message = ("--message", "Replace the word by another.", "note.txt")
    return run("aider", "--model", model, "--yes-always", *OFF, *message, environ=environ)


reset_project()
# aider writes its history to the root of the repository that it runs in, even with --no-git.
subprocess.run(["git", "init", "--quiet", PROJECT], check=True)

for route, environ in ROUTES.items():

    @step(f"{route} answer")
    def _(route: str = route, environ: dict[str, str] = environ) -> None:
        reset_project()
        aider(route + LONG, environ)

    @step(f"{route} edit")
    def _(route: str = route, environ: dict[str, str] = environ) -> None:
        reset_project()
        aider(route + SCRIPTED, environ)
        assert "nectarine" in PROJECT.joinpath("note.txt").read_text()


finish()
