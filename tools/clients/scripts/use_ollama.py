"""ollama: every method of its `Client` that calls the server, or the server's documented refusal.

`web_search` and `web_fetch` are left out: they call ollama.com.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import ollama
from pydantic import BaseModel

from steps import ANSWER, CALLER, CITY, MODEL, ROOT, WEATHER, finish, step

client = ollama.Client(host=ROOT)
HELLO = [{"role": "user", "content": "Name one sea."}]
PULLED = os.environ.get("HEARTH_CLIENT_COPY", MODEL)
"""A model in the library that may be copied and deleted."""


class Person(BaseModel):
    name: str
    age: int


def refused(call: object, status: int) -> None:
    """Require that `call` fails with the server's own error, with `status` and a message."""
    try:
        call()  # type: ignore[operator]
    except ollama.ResponseError as error:
        refusal = error
    else:
        raise AssertionError("accepted")
    assert refusal.status_code == status and refusal.error, refusal


def get_weather(city: str) -> str:
    """Current weather of a city.

    Args:
        city: its name.
    """
    assert city == CITY, city
    return WEATHER


@step("list")
def _() -> None:
    [entry] = [model for model in client.list().models if model.model.split(":")[0] == MODEL]
    assert entry.digest and entry.size and entry.details.format


@step("show")
def _() -> None:
    shown = client.show(CALLER)
    assert "tools" in shown.capabilities and shown.template and shown.modelinfo


@step("chat")
def _() -> None:
    answer = client.chat(MODEL, HELLO, options={"num_predict": 16, "num_ctx": 4096})
    assert answer.message.content and answer.done_reason and answer.load_duration is not None
    parts = client.chat(MODEL, HELLO, stream=True, options={"num_predict": 16})
    assert "".join(part.message.content for part in parts)


@step("chat with tools")
def _() -> None:
    messages: list[object] = [{"role": "user", "content": f"What is the weather in {CITY}?"}]
    first = client.chat(CALLER, messages, tools=[get_weather])
    [call] = first.message.tool_calls
    result = get_weather(**call.function.arguments)
    messages += [
        first.message,
        {"role": "tool", "tool_name": call.function.name, "content": result},
    ]
    assert client.chat(CALLER, messages, tools=[get_weather]).message.content == ANSWER


@step("chat with format")
def _() -> None:
    question = [{"role": "user", "content": "Ann is 41 years old. Give her name and age."}]
    answer = client.chat(
        MODEL, question, format=Person.model_json_schema(), options={"temperature": 0}
    )
    Person.model_validate_json(answer.message.content)


@step("generate")
def _() -> None:
    options = {"num_predict": 16, "num_gpu": 0, "num_thread": 2, "num_keep": 4}
    assert client.generate(MODEL, "Name one sea.", options=options, keep_alive="5m").response


@step("embed")
def _() -> None:
    answer = client.embed(MODEL, ["one", "two"], truncate=True, options={"num_ctx": 2048})
    assert len(answer.embeddings) == 2


@step("embeddings")
def _() -> None:
    assert len(client.embeddings(MODEL, "one").embedding) > 1


@step("ps")
def _() -> None:
    assert client.ps().models


@step("pull")
def _() -> None:
    assert client.pull(MODEL).status == "success"
    assert [part.status for part in client.pull(MODEL, stream=True)][-1] == "success"


@step("copy")
def _() -> None:
    assert client.copy(PULLED, "second-name").status == "success"
    assert any("second-name" in model.model for model in client.list().models)


@step("delete")
def _() -> None:
    assert client.delete("second-name").status == "success"
    assert not any("second-name" in model.model for model in client.list().models)


@step("create (refused)")
def _() -> None:
    refused(lambda: client.create("mine", from_=MODEL), 501)


@step("create_blob (refused)")
def _() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_text("text")
        refused(lambda: client.create_blob(path), 501)


@step("systemone (refused)")
def _() -> None:
    refused(lambda: client.systemone(MODEL, "It rains.", {}), 404)


@step("push (refused)")
def _() -> None:
    refused(lambda: client.push(MODEL), 501)


finish()
