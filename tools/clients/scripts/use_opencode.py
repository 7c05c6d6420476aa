"""opencode: `opencode run` with a provider in opencode.json."""

from __future__ import annotations

import json

from agent_runs import CAP, FOUND, HOME, LONG, PROMPT, SCRIPTED, reset_project, run
from steps import API, finish, step

MODELS = {LONG: {"limit": {"context": 65536, "output": CAP}}, SCRIPTED: {}}
CONFIG = {
    "$schema": "https://opencode.ai/config.json",
    "provider": {
        "hearth": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Hearth",
            "options": {"baseURL": API},
            "models": MODELS,
        }
    },
    "autoupdate": False,
    "share": "disabled",
}
reset_project()
HOME.joinpath(".config/opencode").mkdir(parents=True)
HOME.joinpath(".config/opencode/opencode.json").write_text(json.dumps(CONFIG))


def opencode(model: str) -> str:
    return run("opencode", "run", "-m", f"hearth/{model}", PROMPT)


@step("answer")
def _() -> None:
    opencode(LONG)


@step("tool call (bash)")
def _() -> None:
    assert FOUND in opencode(SCRIPTED)


finish()
