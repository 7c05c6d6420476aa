"""The real `openai` client against a real `hearth serve` with the bundled model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from commands import hearth
from served import Served, served

QUESTION = [{"role": "user", "content": "What is a token?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as one:
        yield one


def test_chat(server) -> None:
    answer = server.openai.chat.completions.create(model="guide", messages=QUESTION, temperature=0)
    choice = answer.choices[0]
    assert "token" in choice.message.content and choice.finish_reason == "stop"
    assert answer.usage.completion_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_same_chat_as_hearth_run(server) -> None:
    answer = server.openai.chat.completions.create(model="guide", messages=QUESTION, temperature=0)
    done = hearth(server.environ, "run", "guide", "What is a token?", "--temperature", "0")
    assert done.stdout.strip() == answer.choices[0].message.content.strip()
    listed = hearth(server.environ, "ps")
    assert len(listed.stdout.splitlines()) == 2, "one worker serves both"


def test_several_choices_limits_seeds_and_log_probabilities(server) -> None:
    client = server.openai
    given = {"model": "guide", "messages": STORY, "temperature": 1, "seed": 7}
    several = client.chat.completions.create(**given, n=3, max_tokens=12)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in several.choices} <= {"stop", "length"}
    again = client.chat.completions.create(**given, n=3, max_tokens=12)
    texts = [choice.message.content for choice in several.choices]
    assert texts == [choice.message.content for choice in again.choices]
    scored = client.chat.completions.create(**given, max_tokens=5, logprobs=True, top_logprobs=2)
    tokens = scored.choices[0].logprobs.content
    assert len(tokens) == 5 and all(len(token.top_logprobs) == 2 for token in tokens)
    assert "".join(token.token for token in tokens) == scored.choices[0].message.content


def test_completions(server) -> None:
    client = server.openai
    answer = client.completions.create(
        model="guide", prompt=["Once upon a", "A token is"], max_tokens=6, temperature=0, echo=True
    )
    assert [choice.text[:4] for choice in answer.choices] == ["Once", "A to"]
    assert answer.usage.completion_tokens <= 12
    pieces = client.completions.create(
        model="guide", prompt="Once upon a", max_tokens=6, temperature=0, stream=True
    )
    text = "".join(choice.text for chunk in pieces for choice in chunk.choices)
    assert "Once upon a" + text == answer.choices[0].text


def test_models(server) -> None:
    client = server.openai
    names = {model.id for model in client.models.list()}
    assert "guide" in names
    assert "guide-draft" not in names
    assert client.models.retrieve("guide-draft").id == "guide-draft"
    assert client.models.retrieve("guide").id == "guide"


def test_errors_are_the_clients_own(server) -> None:
    client = server.openai
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-4", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        create(model="guide", messages=QUESTION, temperature=11)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="guide", messages=[{"role": "user", "content": "x " * 3000}])
    assert (
        long.value.code == "context_length_exceeded"
        and "maximum context length is 2048 tokens" in long.value.message
    )
    with pytest.raises(openai.BadRequestError) as stranger:
        client.completions.create(model="guide", prompt=[10**6])
    assert stranger.value.param == "prompt"


def test_eight_streams_side_by_side(server) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="guide", messages=STORY, temperature=0, max_tokens=60, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def eight() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=server.url, api_key="none", max_retries=0, timeout=60
        ) as client:
            return await asyncio.gather(*(ask(client) for _ in range(8)))

    assert all(asyncio.run(eight()))
