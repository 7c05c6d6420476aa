"""Prints the cost of importing each dependency: milliseconds of processor time beyond a bare
interpreter.

Processor time instead of wall time, so that a busy machine prints the same numbers.
`.venv/bin/python tools/import_cost.py` runs it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

STATEMENTS = {
    "torch": "import torch",
    "llama-cpp-python": "import llama_cpp",
    "gguf": "import gguf",
    "numpy": "import numpy",
    "textual": "import textual.app",
    "platformdirs": "import platformdirs",
    "huggingface-hub": "from huggingface_hub import HfApi",
    "httpx2": "import httpx2",
    "jinja2": "import jinja2.sandbox",
    "msgspec": "import msgspec",
    "click": "import click",
    "llguidance": "import llguidance",
    "psutil": "import psutil",
    "tomlkit": "import tomlkit",
    "xxhash": "import xxhash",
    "starlette": "import starlette.applications",
    "uvicorn": "import uvicorn",
    "anthropic": "import anthropic",
    "openai": "import openai",
    "jsonschema": "import jsonschema",
    "prometheus-client": "import prometheus_client.parser",
    "schemathesis": "import schemathesis",
    "tokenizers": "import tokenizers",
    "transformers": "import transformers",
}
ROUNDS = 5


def cpu_ms(code: str) -> float:
    """Least processor time of a few runs of `code` in a new interpreter, in ms."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    times = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * min(times)


def main() -> None:
    bare = cpu_ms("pass")
    print(f"{'bare interpreter':24} {bare:6.0f} ms")
    for name, statement in STATEMENTS.items():
        print(f"{name:24} {cpu_ms(statement) - bare:6.0f} ms")


if __name__ == "__main__":
    main()
