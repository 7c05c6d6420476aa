"""How a program asks the endpoint, to be copied."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.server.api_key import read_key

_VARIABLE: Final = "HEARTH_API_KEY"
_QUESTION: Final = "What is a token?"


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where the key is that clients are asked for.

    Attributes:
        variable: its text, where the environment has it.
        file: where it is kept otherwise; None: no key is asked for.
    """

    variable: str = ""
    file: Path | None = None

    @property
    def asked(self) -> bool:
        """Clients need a key."""
        return bool(self.variable) or self.file is not None

    def read(self) -> str:
        """The key; empty where none is asked for, or none is made yet.

        Raises:
            KeyFileError, InvalidParameter: the file cannot be used.
        """
        if self.variable or self.file is None or not self.file.exists():
            return self.variable
        return read_key(self.file)

    @property
    def in_shell(self) -> str:
        """What a shell puts in its place."""
        return f"${_VARIABLE}" if self.variable else f"$(cat {shlex.quote(str(self.file))})"

    @property
    def in_python(self) -> str:
        """The expression that gives it."""
        if not self.asked:
            return '"none"'
        if self.variable:
            return f'os.environ["{_VARIABLE}"]'
        return f"open({str(self.file)!r}).read().strip()"


def key_place(file: Path, *, asks: bool, environ: Mapping[str, str] | None = None) -> KeyPlace:
    """Where the key is, if `asks` says that one is kept in `file`, or the environment has one."""
    given = (os.environ if environ is None else environ).get(_VARIABLE, "")
    return KeyPlace(given) if given else KeyPlace(file=file if asks else None)


def curl(url: str, model: str, key: KeyPlace) -> str:
    """A command line that asks `model` at `url`."""
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
    """The same with the openai package."""
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
