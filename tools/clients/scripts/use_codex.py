"""Codex: `codex exec` with a provider in config.toml."""

from __future__ import annotations

from agent_runs import FOUND, HOME, LONG, PROMPT, SCRIPTED, reset_project, run
from steps import API, finish, step

CONFIG = f"""\
model_provider = "hearth"

[model_providers.hearth]
name = "Hearth"
base_url = "{API}"

[analytics]
enabled = false
"""
reset_project()
HOME.joinpath(".codex").mkdir()
HOME.joinpath(".codex/config.toml").write_text(CONFIG)


def codex(model: str) -> str:
    return run("codex", "exec", "--skip-git-repo-check", "-m", model, PROMPT)


@step("answer")
def _() -> None:
    codex(LONG)


@step("tool call (exec_command)")
def _() -> None:
    assert FOUND in codex(SCRIPTED)


finish()
