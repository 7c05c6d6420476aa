"""Claude Code: `claude -p` with its default tools."""

from __future__ import annotations

from agent_runs import CAP, FOUND, LONG, PROMPT, SCRIPTED, reset_project, run
from steps import KEY, ROOT, finish, step

SERVER = {
    "ANTHROPIC_BASE_URL": ROOT,
    "ANTHROPIC_AUTH_TOKEN": KEY,
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
reset_project()


@step("answer")
def _() -> None:
    environ = {"ANTHROPIC_MODEL": LONG, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(CAP)}
    run("claude", "-p", PROMPT, environ=SERVER | environ)


@step("tool call (Read)")
def _() -> None:
    said = run("claude", "-p", PROMPT, environ=SERVER | {"ANTHROPIC_MODEL": SCRIPTED})
    assert FOUND in said


finish()
