"""instructor: TOOLS, JSON and JSON_SCHEMA modes."""

from __future__ import annotations

import instructor
from openai import OpenAI
from pydantic import BaseModel

from steps import API, KEY, MODEL, finish, step


class Person(BaseModel):
    name: str
    age: int


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):

    @step(mode.name)
    def _(mode: instructor.Mode = mode) -> None:
        client = instructor.from_openai(OpenAI(base_url=API, api_key=KEY), mode=mode)
        person = client.chat.completions.create(
            model=MODEL,
            response_model=Person,
            messages=[{"role": "user", "content": "Extract: Ann is 41 years old."}],
            temperature=0,
        )
        assert isinstance(person, Person)


finish()
