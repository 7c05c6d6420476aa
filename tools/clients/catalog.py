"""The clients: which packages are installed for each, and which script runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models import tool_call

NOTE = "note.txt"


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    Attributes:
        packages: packages to install; the version of the first is reported.
        script: file in `scripts/`; .mjs is run by node in the client's environment, .py by the
            environment's Python, or by this Python for an agent.
        first: first output of an agent's scripted model, with `{note}` for the path of the note.
        awaited: text that a tool result must contain for the model to output `last`; if empty, the
            model always outputs `first`.
    """

    name: str
    registry: Literal["PyPI", "npm"]
    packages: tuple[str, ...]
    script: str
    first: str = ""
    awaited: str = ""
    last: str = ""

    @property
    def is_agent(self) -> bool:
        return bool(self.first)

    @property
    def scripted_model(self) -> str:
        return f"scripted-{self.name}"

    def scripted(self, project: Path) -> tuple[str, str, str]:
        """`first`, `awaited` and `last` for an agent that works in `project`."""
        return self.first.replace("{note}", str(project / NOTE)), self.awaited, self.last


def _python(name: str, *packages: str) -> Client:
    return Client(name, "PyPI", packages or (name,), f"use_{name.replace('-', '_')}.py")


_FOUND = "The note says tangerine."
_SHOW = "cat note.txt"

CLIENTS: tuple[Client, ...] = (
    Client(
        "claude-code",
        "npm",
        ("@anthropic-ai/claude-code",),
        "use_claude_code.py",
        tool_call("Read", {"file_path": "{note}"}),
        "tangerine",
        _FOUND,
    ),
    Client(
        "codex",
        "npm",
        ("@openai/codex",),
        "use_codex.py",
        tool_call("exec_command", {"cmd": _SHOW}),
        "tangerine",
        _FOUND,
    ),
    Client(
        "opencode",
        "npm",
        ("opencode-ai",),
        "use_opencode.py",
        tool_call("bash", {"command": _SHOW, "description": "Show it"}),
        "tangerine",
        _FOUND,
    ),
    Client(
        "aider",
        "PyPI",
        ("aider-chat",),
        "use_aider.py",
        f"{NOTE}\n```\nthe secret word is nectarine\n```\n",
    ),
    _python("openai"),
    _python("openai-agents"),
    _python("anthropic"),
    _python("litellm", "litellm[mcp]"),
    _python("langchain-openai"),
    _python("langchain-ollama"),
    _python("instructor"),
    _python("pydantic-ai", "pydantic-ai-slim[openai]"),
    _python("outlines", "outlines", "openai", "ollama"),
    _python("guidance", "guidance", "openai"),
    _python("llm"),
    Client(
        "ai-sdk",
        "npm",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "zod"),
        "use_ai_sdk.mjs",
    ),
    _python("ollama"),
    _python("lm-eval", "lm-eval[api]"),
)
