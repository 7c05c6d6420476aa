"""langchain-openai: invoke, stream, tools, structured output, embeddings."""

from __future__ import annotations

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from steps import ANSWER, API, CALLER, CITY, KEY, MODEL, WEATHER, finish, step

chat = ChatOpenAI(base_url=API, api_key=KEY, model=MODEL, max_tokens=64, temperature=0)
caller = ChatOpenAI(base_url=API, api_key=KEY, model=CALLER)


class Person(BaseModel):
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Current weather of a city."""
    assert city == CITY, city
    return WEATHER


@step("invoke")
def _() -> None:
    assert chat.invoke("Name one sea.").content


@step("stream")
def _() -> None:
    assert "".join(part.content for part in chat.stream("Name one sea."))


@step("tools")
def _() -> None:
    bound = caller.bind_tools([get_weather])
    messages: list[object] = [HumanMessage(f"What is the weather in {CITY}?")]
    first = bound.invoke(messages)
    [call] = first.tool_calls
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert bound.invoke([*messages, first, result]).content == ANSWER


for method in ("json_schema", "function_calling"):

    @step(f"with_structured_output {method}")
    def _(method: str = method) -> None:
        parsed = chat.with_structured_output(Person, method=method).invoke(
            "Ann is 41 years old. Give her name and age."
        )
        assert isinstance(parsed, Person)


@step("embeddings")
def _() -> None:
    # langchain-openai's documentation asks for check_embedding_ctx_length=False for other servers.
    embed = OpenAIEmbeddings(
        base_url=API, api_key=KEY, model=MODEL, check_embedding_ctx_length=False
    )
    assert len(embed.embed_documents(["one", "two"])) == 2


finish()
