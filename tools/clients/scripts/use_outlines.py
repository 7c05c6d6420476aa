"""outlines: JSON through its openai, vLLM and Ollama connectors, a choice and a regular expression
where a connector has them.
"""

from __future__ import annotations

from typing import Literal

import ollama
import openai
import outlines
from outlines.types import Regex
from pydantic import BaseModel

from steps import API, KEY, MODEL, ROOT, finish, step

PROMPT = "Ann is 41 years old. Give her name and age."
server = openai.OpenAI(base_url=API, api_key=KEY)


class Person(BaseModel):
    name: str
    age: int


@step("openai")
def _() -> None:
    model = outlines.from_openai(server, MODEL)
    Person.model_validate_json(model(PROMPT, Person, max_tokens=200, temperature=0))


@step("vllm")
def _() -> None:
    model = outlines.from_vllm(server, MODEL)
    Person.model_validate_json(model(PROMPT, Person, max_tokens=200, temperature=0))
    assert model("Is the sea wet?", Literal["yes", "no"], max_tokens=8) in ("yes", "no")
    assert model("A year?", Regex(r"[12][0-9]{3}"), max_tokens=16).isdigit()


@step("ollama")
def _() -> None:
    model = outlines.from_ollama(ollama.Client(host=ROOT), MODEL)
    Person.model_validate_json(model(PROMPT, Person, options={"temperature": 0}))


finish()
