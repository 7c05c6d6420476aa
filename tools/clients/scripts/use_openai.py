"""openai: chat, `parse`, `stream`, tools, Responses, completions, embeddings."""

from __future__ import annotations

import json

import openai
from pydantic import BaseModel

from steps import ANSWER, API, CALLER, CITY, KEY, MODEL, WEATHER, finish, step

client = openai.OpenAI(base_url=API, api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "Name one sea."}]
ASK = [{"role": "user", "content": f"What is the weather in {CITY}?"}]


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    """Current weather of a city."""

    city: str


@step("chat")
def _() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16)
    assert answer.choices[0].message.content


@step("stream")
def _() -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=16) as stream:
        kinds = {event.type for event in stream}
        assert {"chunk", "content.delta"} <= kinds, kinds
        assert stream.current_completion_snapshot.choices[0].message.content


@step("parse")
def _() -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Ann is 41 years old. Give her name and age."}],
        response_format=Person,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


@step("tools")
def _() -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    first = client.chat.completions.parse(model=CALLER, messages=ASK, tools=[tool])
    message = first.choices[0].message
    [call] = message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city=CITY)
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    second = client.chat.completions.create(
        model=CALLER, messages=[*ASK, message, result], tools=[tool]
    )
    assert second.choices[0].message.content == ANSWER


@step("named tool_choice")
def _() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=[openai.pydantic_function_tool(GetWeather, name="get_weather")],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=200,
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


@step("Responses")
def _() -> None:
    answer = client.responses.create(model=MODEL, input="Name one sea.", max_output_tokens=16)
    assert answer.output_text


@step("Responses parse")
def _() -> None:
    answer = client.responses.parse(
        model=MODEL,
        input="Ann is 41 years old. Give her name and age.",
        text_format=Person,
        temperature=0,
    )
    assert isinstance(answer.output_parsed, Person)


@step("Responses tools, streamed")
def _() -> None:
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": GetWeather.model_json_schema(),
        "strict": False,
    }
    with client.responses.stream(model=CALLER, input=ASK, tools=[tool]) as stream:
        for _event in stream:
            pass
        first = stream.get_final_response()
    [call] = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": CITY}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
    made = [item.model_dump(exclude_none=True) for item in first.output]
    second = client.responses.create(model=CALLER, input=[*ASK, *made, result], tools=[tool])
    assert second.output_text == ANSWER


@step("completions")
def _() -> None:
    answer = client.completions.create(model=MODEL, prompt="The sea is", max_tokens=8, logprobs=1)
    assert answer.choices[0].text


@step("embeddings")
def _() -> None:
    answer = client.embeddings.create(model=MODEL, input=["one", "two"])
    assert len(answer.data) == 2 and len(answer.data[0].embedding) > 1


@step("models")
def _() -> None:
    assert MODEL in {model.id for model in client.models.list()}


finish()
