"""anthropic: create, stream, `tool_runner`, count_tokens, models."""

from __future__ import annotations

import anthropic
from anthropic import beta_tool

from steps import ANSWER, CALLER, CITY, KEY, MODEL, ROOT, WEATHER, finish, step

client = anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "Name one sea."}]
ASK = [{"role": "user", "content": f"What is the weather in {CITY}?"}]


@beta_tool
def get_weather(city: str) -> str:
    """Current weather of a city.

    Args:
        city: its name.
    """
    assert city == CITY, city
    return WEATHER


@step("create")
def _() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=16, system="Be brief.", messages=HELLO)
    assert answer.content[0].text


@step("stream")
def _() -> None:
    with client.messages.stream(model=MODEL, max_tokens=16, messages=HELLO) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens


@step("tool_runner")
def _() -> None:
    runner = client.beta.messages.tool_runner(
        model=CALLER, max_tokens=1024, tools=[get_weather], messages=ASK
    )
    assert runner.until_done().content[-1].text == ANSWER


@step("tool_runner, streamed")
def _() -> None:
    runner = client.beta.messages.tool_runner(
        model=CALLER, max_tokens=1024, tools=[get_weather], messages=ASK, stream=True
    )
    last = [stream.get_final_message() for stream in runner][-1]
    assert last.content[-1].text == ANSWER


@step("count_tokens")
def _() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens > 0


@step("models")
def _() -> None:
    assert MODEL in {model.id for model in client.models.list()}
    assert client.models.retrieve(MODEL).display_name


finish()
