"""openai-agents: an agent with a function tool, over Responses and over chat completions."""

from __future__ import annotations

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from steps import ANSWER, API, CALLER, CITY, KEY, WEATHER, finish, step

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=API, api_key=KEY)


@function_tool
def get_weather(city: str) -> str:
    """Current weather of a city."""
    assert city == CITY, city
    return WEATHER


for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):

    @step(kind.__name__)
    def _(kind: type = kind) -> None:
        agent = Agent(
            name="Assistant",
            instructions="Be brief.",
            tools=[get_weather],
            model=kind(model=CALLER, openai_client=client),
        )
        outcome = Runner.run_sync(agent, f"What is the weather in {CITY}?")
        assert outcome.final_output == ANSWER, outcome.final_output


finish()
