"""Programs that use a Hearth server: examples to copy, and the coding agents that `hearth launch`
starts, with the configuration of each.

The variables and options come from each client's own documentation. They apply to one process: no
configuration file of a client is written.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hearth.app.server.api_key import read_key

KEY_VARIABLE: Final = "HEARTH_API_KEY"
_QUESTION: Final = "What is a token?"
NO_KEY: Final = "none"
"""The key sent when a client insists on one and the server requires none."""
_PATIENCE_MS: Final = 3_600_000
"""Request timeout: a long prompt takes many minutes on a processor."""


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where clients find the API key.

    Attributes:
        variable: the key itself, if it comes from the environment; else empty.
        file: the file that contains the key otherwise; None if no key is required.
    """

    variable: str = ""
    file: Path | None = None

    @property
    def asked(self) -> bool:
        """Whether clients need a key."""
        return bool(self.variable) or self.file is not None

    def read(self) -> str:
        """The key; empty if none is required, or none has been made yet.

        Raises:
            KeyFileError, InvalidParameter: the file cannot be used.
        """
        if self.variable or self.file is None or not self.file.exists():
            return self.variable
        return read_key(self.file)

    @property
    def in_shell(self) -> str:
        """The shell expression for the key."""
        return f"${KEY_VARIABLE}" if self.variable else f"$(cat {shlex.quote(str(self.file))})"

    @property
    def in_python(self) -> str:
        """The Python expression for the key."""
        if not self.asked:
            return f'"{NO_KEY}"'
        if self.variable:
            return f'os.environ["{KEY_VARIABLE}"]'
        return f"open({str(self.file)!r}).read().strip()"


def key_place(file: Path, *, asks: bool, environ: Mapping[str, str] | None = None) -> KeyPlace:
    """The place of the key: the environment if it has one, else `file` if `asks`."""
    given = (os.environ if environ is None else environ).get(KEY_VARIABLE, "")
    return KeyPlace(given) if given else KeyPlace(file=file if asks else None)


def curl(url: str, model: str, key: KeyPlace) -> str:
    """A curl command that asks `model` at `url`."""
    body = {"model": model, "messages": [{"role": "user", "content": _QUESTION}]}
    head = [f'-H "Authorization: Bearer {key.in_shell}"'] if key.asked else []
    parts = [
        f"curl {url}/chat/completions",
        '-H "Content-Type: application/json"',
        *head,
        f"-d {shlex.quote(json.dumps(body))}",
    ]
    return " \\\n  ".join(parts)


def python(url: str, model: str, key: KeyPlace) -> str:
    """The same request with the openai package."""
    lines = ["import os"] if key.variable else []
    lines += [
        "from openai import OpenAI",
        "",
        f'client = OpenAI(base_url="{url}", api_key={key.in_python})',
        "answer = client.chat.completions.create(",
        f"    model={model!r},",
        f'    messages=[{{"role": "user", "content": "{_QUESTION}"}}],',
        ")",
        "print(answer.choices[0].message.content)",
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a server.

    Attributes:
        root: the server's URL without a path.
        model: the model's name there.
        key: the API key; empty if none is required.
        context: the model's context in tokens; 0 if unknown.
    """

    root: str
    model: str
    key: str = ""
    context: int = 0

    @property
    def openai(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.root}/v1"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a client is started.

    Attributes:
        arguments: placed before the user's arguments.
        environ: variables to set.
        unset: variables to remove, because they would take precedence.
    """

    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """A program that `hearth launch` can start.

    Attributes:
        program: its command.
        title: its name.
        install: the command that installs it.
        recipe: returns how it is started for a target.
        least_context: tokens of context that its own instructions and one task need.
    """

    program: str
    title: str
    install: str
    recipe: Callable[[Target], Recipe]
    least_context: int


def _claude(target: Target) -> Recipe:
    """See https://code.claude.com/docs/en/env-vars."""
    models = (
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    )
    environ = {
        "ANTHROPIC_BASE_URL": target.root,
        "ANTHROPIC_AUTH_TOKEN": target.key or NO_KEY,
        **dict.fromkeys(models, target.model),
        "API_TIMEOUT_MS": str(_PATIENCE_MS),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Otherwise each prompt begins with a line of its session, which defeats the prompt cache.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
    if target.context:
        environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
    return Recipe((), environ, ("ANTHROPIC_API_KEY",))


def _codex(target: Target) -> Recipe:
    """See https://developers.openai.com/codex/config-reference."""
    provider = "model_providers.hearth."
    config: dict[str, str | int | bool] = {
        "model": target.model,
        "model_provider": "hearth",
        f"{provider}name": "Hearth",
        f"{provider}base_url": target.openai,
        f"{provider}wire_api": "responses",
        f"{provider}stream_idle_timeout_ms": _PATIENCE_MS,
        "web_search": "disabled",
        "analytics.enabled": False,
        "feedback.enabled": False,
        "check_for_update_on_startup": False,
    }
    if target.context:
        config["model_context_window"] = target.context
    if target.key:
        config[f"{provider}env_key"] = KEY_VARIABLE
    # The values are TOML, which writes strings, numbers and booleans as JSON does.
    options = [("-c", f"{name}={json.dumps(value)}") for name, value in config.items()]
    return Recipe(tuple(part for option in options for part in option), _key(target))


def _opencode(target: Target) -> Recipe:
    """See https://opencode.ai/docs/config and https://opencode.ai/docs/providers."""
    limit = {"context": target.context, "output": max(1, target.context // 4)}
    model = {"name": target.model, **({"limit": limit} if target.context else {})}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "hearth": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Hearth",
                "options": {
                    "baseURL": target.openai,
                    "apiKey": f"{{env:{KEY_VARIABLE}}}" if target.key else NO_KEY,
                    "timeout": False,
                },
                "models": {target.model: model},
            }
        },
        "model": f"hearth/{target.model}",
        "small_model": f"hearth/{target.model}",
        "autoupdate": False,
        "share": "disabled",
    }
    environ = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Recipe((), environ | _key(target))


def _aider(target: Target) -> Recipe:
    """See https://aider.chat/docs/llms/openai-compat.html and its options reference."""
    arguments = (
        *("--model", f"openai/{target.model}"),
        *("--openai-api-base", target.openai),
        *("--timeout", str(_PATIENCE_MS // 1000)),
        "--no-analytics",
        "--no-check-update",
        "--no-show-release-notes",
        "--no-show-model-warnings",
    )
    key = target.key or NO_KEY
    environ = {
        # This one takes precedence over a .env file of the project.
        "AIDER_OPENAI_API_KEY": key,
        "OPENAI_API_KEY": key,
        # Otherwise LiteLLM downloads its list of prices at startup.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return Recipe(arguments, environ)


def _key(target: Target) -> dict[str, str]:
    return {KEY_VARIABLE: target.key} if target.key else {}


CLIENTS: Final = {
    "claude": Client(
        "claude", "Claude Code", "npm install -g @anthropic-ai/claude-code", _claude, 32_768
    ),
    "codex": Client("codex", "Codex", "npm install -g @openai/codex", _codex, 16_384),
    "opencode": Client("opencode", "opencode", "npm install -g opencode-ai", _opencode, 16_384),
    "aider": Client("aider", "aider", "pipx install aider-chat", _aider, 8_192),
}
