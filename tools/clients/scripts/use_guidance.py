"""guidance: one chat message, and `json` with a pydantic schema."""

from __future__ import annotations

import guidance
from guidance import assistant, gen, user
from guidance.models.experimental import VLLMModel
from pydantic import BaseModel

from steps import API, KEY, MODEL, finish, step


class Person(BaseModel):
    name: str
    age: int


@step("OpenAI gen")
def _() -> None:
    model = guidance.models.OpenAI(MODEL, base_url=API, api_key=KEY, echo=False)
    with user():
        model += "Name one sea."
    with assistant():
        model += gen("sea", max_tokens=16)
    assert model["sea"]


@step("OpenAI json")
def _() -> None:
    model = guidance.models.OpenAI(MODEL, base_url=API, api_key=KEY, echo=False)
    with user():
        model += "Ann is 41 years old. Give her name and age."
    with assistant():
        model += guidance.json(name="person", schema=Person, max_tokens=200)
    Person.model_validate_json(model["person"])


@step("vLLM grammar")
def _() -> None:
    model = VLLMModel(MODEL, base_url=API, api_key=KEY, echo=False)
    with user():
        model += "Is the sea wet?"
    with assistant():
        model += guidance.select(["yes", "no"], name="answer")
    assert model["answer"] in ("yes", "no")


finish()
