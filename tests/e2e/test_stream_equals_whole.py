"""Through the real server and the clients that people use: what comes as a stream is what comes
whole, and is what the ids of the engine stand for, which are as many as were counted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract import Tool
from openai_families import CHAT, COMPLETIONS, RESPONSES
from other_families import MESSAGES, OLLAMA
from questions import Family, Question, Said, from_engine
from scripted_models import scripted_model
from served import Served, served

EXACT = {"HEARTH_KV_TYPE": "f32", "HEARTH_FLASH_ATTENTION": "false"}
"""Greedy answers do not depend on what else runs, nor on what is known already."""
FAMILIES = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "ollama": OLLAMA,
}
WEATHER = Tool(
    "weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
ANSWER = {
    "type": "object",
    "properties": {
        "term": {"type": "string", "maxLength": 16},
        "known": {"type": "boolean"},
    },
    "required": ["term", "known"],
    "additionalProperties": False,
}
THOUGHT = "\nWhat is asked? 日本語 and Grüße; both are easy.\n"
SAID = "\n\nGrüße heißt greetings, 日本語 is Japanese \N{GRINNING FACE}, and that is all."
CALLS = (
    ("weather", '{"city": "Zürich", "days": 3}'),
    ("weather", '{"city": "東京", "days": 2}'),
)
ASKS = "I look it up.\n" + "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in CALLS
)
SCRIPTED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}{% if tools %}{{ tools | tojson }}<tool_call><|ask|>"
    "{% else %}<think>{% endif %}{% endif %}{# </think> #}"
)
OPENS_THOUGHT = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"

PLAIN = Question("exact")
SCENARIOS = {
    "plain": PLAIN,
    "to the end": replace(PLAIN, max_tokens=400),
    "one token": replace(PLAIN, max_tokens=1),
    "stopped": replace(PLAIN, stop=("(spans tokens)", "never said")),
    "logprobs": replace(PLAIN, logprobs=True),
    "two choices": replace(PLAIN, n=2, temperature=1.0, seed=5, max_tokens=24),
    "two greedy choices with logprobs": replace(PLAIN, n=2, logprobs=True, max_tokens=16),
    "schema": replace(PLAIN, schema=ANSWER, max_tokens=200),
    "forced call": replace(PLAIN, tools=(WEATHER,), required=True, max_tokens=200),
    "thoughts": Question("scripted"),
    "stopped in a thought": Question("scripted", stop=("both are",)),
    "stopped within characters that span tokens": Question("scripted", stop=("本語 is",)),
    "cut in a thought": Question("scripted", max_tokens=6),
    "cut in a character": Question("scripted", max_tokens=20),
    "calls": Question("scripted", tools=(WEATHER,)),
    "random bytes": Question("random", max_tokens=64),
    "stopped among random bytes": Question("random", max_tokens=64, stop=("\ufffd",)),
}


def asked_of(family: Family, question: Question) -> bool:
    """Can this be asked there?"""
    in_chats = bool(question.tools) or question.model == "scripted"
    return not (
        (in_chats and not family.chat)
        or (question.n > 1 and not family.choices)
        or (question.logprobs and not family.logprobs)
        or (question.required and not family.required)
    )


CASES = [
    pytest.param(family, question, id=f"{family_name}, {name}")
    for family_name, family in FAMILIES.items()
    for name, question in SCENARIOS.items()
    if asked_of(family, question)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, guide_f32: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "exact": guide_f32,
        "scripted": scripted_model(
            folder / "scripted.gguf",
            {"<think>": THOUGHT + "</think>" + SAID, "<|ask|>": ASKS},
            SCRIPTED,
            specials=["</think>", "<tool_call>"],
        ),
        "random": tiny_llama(folder / "random.gguf", template=OPENS_THOUGHT, seed=3),
    }
    with served(EXACT, models) as one:
        yield one


@pytest.fixture(scope="module")
def spanning(server: Served) -> dict[bool, str]:
    """A text that begins in one token of the plain answer and ends in another, by whether the
    answer is one of a chat.
    """

    def find(*, chat: bool) -> str:
        answer, _, _ = asyncio.run(from_engine(server, replace(PLAIN, logprobs=True), chat=chat))
        assert answer.choices[0].tokens is not None
        text = answer.choices[0].content
        tokens = [token for token, _ in answer.choices[0].tokens]
        borders = [len("".join(tokens[:count])) for count in range(6, len(tokens))]
        return next(
            found
            for border in borders
            if text.find(found := text[border - 2 : border + 3]) == border - 2
        )

    return {chat: find(chat=chat) for chat in (True, False)}


@pytest.mark.parametrize(("family", "question"), CASES)
def test_a_stream_is_the_whole_answer_is_the_ids(server, spanning, family, question) -> None:
    if question.stop and question.model == "exact":
        question = replace(question, stop=(spanning[family.chat], *question.stop[1:]))
    engine, ids, texts = asyncio.run(from_engine(server, question, chat=family.chat))
    whole = family.whole(server, question)
    streamed = family.streamed(server, question)

    assert streamed == (whole if family.exact_arguments else _written_anew(streamed, whole))
    assert whole.completion_tokens == engine.completion_tokens == sum(map(len, ids))
    assert whole.prompt_tokens == engine.prompt_tokens
    if whole.reasoning_tokens is not None:
        assert whole.reasoning_tokens == engine.reasoning_tokens
    for said, of_engine, text in zip(whole.choices, engine.choices, texts, strict=True):
        expected = read(text, question)
        assert (said.content, said.reasoning) == (expected.content, expected.reasoning)
        assert _objects(said) == _objects(expected)
        assert said.reason == of_engine.reason
        if family.exact_arguments:
            assert said.calls == expected.calls
        if question.logprobs:
            assert said.tokens == of_engine.tokens
            assert said.tokens and "".join(token for token, _ in said.tokens) == text
    if question.logprobs:
        assert sum(len(said.tokens or ()) for said in whole.choices) == whole.completion_tokens
    if question.schema is not None:
        assert set(json.loads(whole.choices[0].content)) == {"term", "known"}


def _written_anew(streamed, whole):
    """`whole`, whose calls have objects, with the arguments as the stream has them; they are the
    same objects.
    """
    pairs = zip(streamed.choices, whole.choices, strict=True)
    assert all(_objects(one) == _objects(other) for one, other in pairs)
    choices = [
        replace(other, calls=one.calls)
        for one, other in zip(streamed.choices, whole.choices, strict=True)
    ]
    return replace(whole, choices=choices)


def _objects(said: Said) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in said.calls]


def read(text: str, question: Question) -> Said:
    """What a person reads in `text`, which is all that the ids stand for."""
    ends = [(text.find(stop) + len(stop), stop) for stop in question.stop if stop in text]
    if ends:
        end, stop = min(ends)
        text = text[: end - len(stop)]
    if question.required:
        call = json.loads(text)
        written = re.fullmatch(r'\{"name": ?"weather", ?"arguments": ?(.*)\}', text, re.DOTALL)
        assert written is not None
        return Said(calls=[(call["name"], written[1])])
    if question.tools:
        content, *calls = re.split(r"\s*<tool_call>\s*", text)
        assert len(calls) == len(CALLS)
        return Said(content, calls=list(CALLS))
    if question.model == "exact":
        return Said(text)
    reasoning, _, content = text.partition("</think>")
    if "</think>" in text:
        reasoning = reasoning.rstrip("\n")
    return Said(content.lstrip("\n"), reasoning.lstrip("\n"))


def test_the_scripted_model_says_its_scripts(server) -> None:
    """What the tests above read is there to be read."""
    chat = server.openai().chat.completions
    ask = {"model": "scripted", "messages": PLAIN.messages, "temperature": 0}
    thought = chat.create(**ask).choices[0].message
    assert (thought.content, thought.reasoning_content) == (SAID.strip("\n"), THOUGHT.strip("\n"))
    tools = [{"type": "function", "function": {"name": "weather"}}]
    calls = chat.create(**ask, tools=tools).choices[0].message
    assert calls.content == "I look it up."
    assert [(c.function.name, c.function.arguments) for c in calls.tool_calls] == list(CALLS)
