"""pydantic-ai: an agent with a tool, and one with typed output."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from steps import ANSWER, API, CALLER, CITY, KEY, MODEL, WEATHER, finish, step

provider = OpenAIProvider(base_url=API, api_key=KEY)


class Person(BaseModel):
    name: str
    age: int


@step("tool")
def _() -> None:
    agent = Agent(OpenAIChatModel(CALLER, provider=provider), instructions="Be brief.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Current weather of a city."""
        assert city == CITY, city
        return WEATHER

    assert agent.run_sync(f"What is the weather in {CITY}?").output == ANSWER


@step("output_type")
def _() -> None:
    agent = Agent(
        OpenAIChatModel(MODEL, provider=provider),
        output_type=Person,
        model_settings={"temperature": 0, "max_tokens": 300},
    )
    assert isinstance(agent.run_sync("Ann is 41 years old. Give her name and age.").output, Person)


finish()
