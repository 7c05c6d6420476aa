"""`llm`: a prompt, and `--schema`, with the model declared in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import API, KEY, MODEL, finish, step

folder = Path(tempfile.mkdtemp())
environ = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": KEY}
folder.joinpath("extra-openai-models.yaml").write_text(
    f"- model_id: hearth\n  model_name: {MODEL}\n  api_base: {API}\n  supports_schema: true\n"
    "  supports_tools: true\n"
)


def llm(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("llm")), *arguments]
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


@step("prompt")
def _() -> None:
    assert llm("-m", "hearth", "-o", "max_tokens", "16", "Name one sea.").strip()


@step("--schema")
def _() -> None:
    said = llm(
        *("-m", "hearth", "-o", "temperature", "0", "-o", "max_tokens", "200"),
        *("--schema", "name, age int", "Ann is 41 years old."),
    )
    assert set(json.loads(said)) == {"name", "age"}


finish()
