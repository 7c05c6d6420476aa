"""langchain-ollama: invoke, stream, tools, structured output, embeddings."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from pydantic import BaseModel

from steps import ANSWER, CALLER, CITY, MODEL, ROOT, WEATHER, finish, step

chat = ChatOllama(base_url=ROOT, model=MODEL, num_predict=64, temperature=0)


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
    bound = ChatOllama(base_url=ROOT, model=CALLER).bind_tools([get_weather])
    messages: list[object] = [HumanMessage(f"What is the weather in {CITY}?")]
    first = bound.invoke(messages)
    [call] = first.tool_calls
    assert bound.invoke([*messages, first, get_weather.invoke(call)]).content == ANSWER


@step("with_structured_output")
def _() -> None:
    parsed = chat.with_structured_output(Person).invoke(
        "Ann is 41 years old. Give her name and age."
    )
    assert isinstance(parsed, Person)


@step("embeddings")
def _() -> None:
    embed = OllamaEmbeddings(base_url=ROOT, model=MODEL)
    assert len(embed.embed_documents(["one", "two"])) == 2


finish()
