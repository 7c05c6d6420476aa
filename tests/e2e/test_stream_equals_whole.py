"""Through the real server and the clients that people use: what comes as a stream is what comes
whole, and is what the ids of the engine stand for, which are as many as were counted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anthropic.types import Usage

from gguf_builder import tiny_llama
from hearth.backends.contract.requests import Tool
from openai_families import CHAT, COMPLETIONS, RESPONSES
from other_families import MESSAGES, OLLAMA
from questions import Answer, Family, FromEngine, Question, Said, from_engine
from scripted_models import scripted_model
from served import Served, served

EXACT = {
    "HEARTH_KV_TYPE": "f32",
    "HEARTH_FLASH_ATTENTION": "false",
    "HEARTH_THREADS": "1",
    "HEARTH_BATCH_THREADS": "1",
}
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

FORCED = re.compile(r'\{"name": ?"(?P<name>\w+)", ?"arguments": ?(?P<arguments>\{.*\})\}', re.S)
CALL = re.compile(
    r'\s*<tool_call>\n\{"name": "(?P<name>\w+)", "arguments": (?P<arguments>\{.*?)'
    r"(\}\n</tool_call>|\Z)",
    re.S,
)
"""Also one that was cut in its arguments."""

WHOLE = 100
"""Tokens that hold all of a script."""
BEGUN = "Once upon a time"
"""What is completed where there are no chats."""
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
    "forced call": replace(PLAIN, tools=(WEATHER,), required=True, parallel=False, max_tokens=200),
    "thoughts": Question("scripted"),
    "stopped in a thought": Question("scripted", stop=("both are",)),
    "stopped within characters that span tokens": Question("scripted", stop=("本語 is",)),
    "cut in a thought": Question("scripted", max_tokens=6),
    "cut in a character": Question("scripted", max_tokens=20),
    "calls": Question("scripted", tools=(WEATHER,), max_tokens=WHOLE),
    "cut in a call": Question("scripted", tools=(WEATHER,), max_tokens=20),
    "stopped in a call": Question("scripted", tools=(WEATHER,), stop=('"days": 2',)),
    "random bytes": Question("random", max_tokens=64),
    "stopped among random bytes": Question("random", max_tokens=64, stop=("\ufffd",)),
}


def asked_of(family: Family, question: Question) -> bool:
    """Can this be asked there?"""
    in_chats = bool(question.tools) or question.model == "scripted"
    is_cut = bool(question.tools) and not question.required and question.max_tokens < WHOLE
    return not (
        (in_chats and not family.chat)
        or (is_cut and not family.exact_arguments)
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
def of_engine(server: Served) -> Callable[..., FromEngine]:
    """What the engine says to a question, asked once."""

    said: dict[tuple[str, bool], FromEngine] = {}

    def ask(question: Question, *, chat: bool) -> FromEngine:
        key = (repr(question), chat)
        if key not in said:
            said[key] = asyncio.run(from_engine(server, question, chat=chat))
        return said[key]

    return ask


@pytest.fixture(scope="module")
def spanning(of_engine) -> dict[bool, str]:
    """A text that begins in one token of the plain answer and ends in another, by whether the
    answer is one of a chat.
    """

    def find(*, chat: bool) -> str:
        question = replace(PLAIN, text=PLAIN.text if chat else BEGUN, logprobs=True)
        answer, _, _ = of_engine(question, chat=chat)
        text, tokens = answer.choices[0].content, answer.choices[0].tokens
        borders = [len("".join(tokens[:count])) for count in range(6, len(tokens))]
        return next(
            found
            for border in borders
            if text.find(found := text[border - 2 : border + 3]) == border - 2
        )

    return {chat: find(chat=chat) for chat in (True, False)}


@pytest.mark.parametrize(("family", "question"), CASES)
def test_a_stream_is_the_whole_answer_is_the_ids(
    server, of_engine, spanning, family, question
) -> None:
    if question.stop and question.model == "exact":
        question = replace(question, stop=(spanning[family.chat], *question.stop[1:]))
    if not family.chat:
        question = replace(question, text=BEGUN)
    engine, ids, texts = of_engine(question, chat=family.chat)
    whole = family.whole(server, question)
    streamed = family.streamed(server, question)

    assert streamed == (whole if family.exact_arguments else _with_texts(whole, streamed))
    assert whole.completion_tokens == engine.completion_tokens == sum(map(len, ids))
    assert whole.prompt_tokens == engine.prompt_tokens
    if whole.reasoning_tokens is not None:
        assert whole.reasoning_tokens == engine.reasoning_tokens
    for said, from_ids, text in zip(streamed.choices, engine.choices, texts, strict=True):
        expected = read(text, question, chat=family.chat)
        assert (said.content, said.reasoning) == (expected.content, expected.reasoning)
        assert _objects(said) == _objects(expected)
        assert said.reason == from_ids.reason
        if question.logprobs:
            assert said.tokens == from_ids.tokens and "".join(said.tokens) == text
            assert said.logprobs == pytest.approx(from_ids.logprobs, abs=1e-3)
    if question.logprobs:
        assert sum(len(said.tokens) for said in whole.choices) == whole.completion_tokens
    if question.schema is not None:
        assert set(json.loads(whole.choices[0].content)) == {"term", "known"}
    if question.required:
        ((name, arguments),) = streamed.choices[0].calls
        assert name == "weather" and set(json.loads(arguments)) == {"city", "days"}


def _with_texts(whole: Answer, streamed: Answer) -> Answer:
    """`whole`, whose calls have objects, with the texts of `streamed` that stand for the same."""
    choices = []
    for said, other in zip(whole.choices, streamed.choices, strict=True):
        assert _objects(said) == _objects(other)
        choices.append(replace(said, calls=other.calls))
    return replace(whole, choices=choices)


def _objects(said: Said) -> list[tuple[str, object]]:
    """Its calls; the texts of arguments that were cut."""
    found: list[tuple[str, object]] = []
    for name, arguments in said.calls:
        try:
            found.append((name, json.loads(arguments)))
        except ValueError:
            found.append((name, arguments))
    return found


def read(text: str, question: Question, *, chat: bool) -> Said:
    """What a person reads in `text`, which is all that the ids stand for."""
    ends = [(text.find(stop) + len(stop), stop) for stop in question.stop if stop in text]
    if ends:
        end, stop = min(ends)
        text = text[: end - len(stop)]
    if question.tools:
        form = FORCED if question.required else CALL
        calls = [(found["name"], found["arguments"]) for found in form.finditer(text)]
        return Said(form.sub("", text), calls=calls)
    if question.model == "random":
        text = re.sub(r"<\|[a-z]+\|>", "", text)
    if question.model == "exact" or not chat:
        return Said(text)
    reasoning, found, content = text.partition("</think>")
    if found:
        reasoning = reasoning.rstrip("\n")
    return Said(content.lstrip("\n"), reasoning.lstrip("\n"))


def test_the_scripted_model_says_its_scripts(server) -> None:
    """What the tests above read is there to be read."""
    chat = server.openai.chat.completions
    ask = {"model": "scripted", "messages": PLAIN.messages, "temperature": 0}
    thought = chat.create(**ask).choices[0].message
    assert (thought.content, thought.reasoning_content) == (SAID.strip("\n"), THOUGHT.strip("\n"))
    tools = [{"type": "function", "function": {"name": "weather"}}]
    calls = chat.create(**ask, tools=tools).choices[0].message
    assert calls.content == "I look it up."
    assert [(c.function.name, c.function.arguments) for c in calls.tool_calls] == list(CALLS)


def test_openais_helpers_make_the_whole_answer_of_a_stream(server) -> None:
    client = server.openai
    tool = {
        "type": "function",
        "function": {"name": "weather", "strict": True, "parameters": WEATHER.parameters},
    }
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
    for fields in (
        {"model": "exact", "max_tokens": 200, "response_format": shape},
        {"model": "scripted", "max_tokens": WHOLE, "tools": [tool]},
    ):
        fields = {**fields, "messages": PLAIN.messages, "temperature": 0}
        whole = client.chat.completions.create(**fields).choices[0]
        with client.chat.completions.stream(**fields) as stream:
            made = stream.get_final_completion().choices[0]
        assert made.finish_reason == whole.finish_reason
        assert made.message.content == (whole.message.content or None)
        calls = [
            [(call.id[:5], call.function.name, call.function.arguments) for call in calls or ()]
            for calls in (made.message.tool_calls, whole.message.tool_calls)
        ]
        assert calls[0] == calls[1]
    with client.responses.stream(model="scripted", input="Hi", temperature=0) as stream:
        response = stream.get_final_response()
    assert response.output_text == SAID.strip("\n")


def test_anthropics_counts_are_those_of_the_answer(server) -> None:
    client = server.anthropic
    asked = {
        "model": "exact",
        "system": "You are brief.",
        "messages": PLAIN.messages,
        "tools": [{"name": "weather", "input_schema": WEATHER.parameters}],
    }
    counted = client.messages.count_tokens(**asked).input_tokens
    answer = client.messages.create(**asked, max_tokens=8)
    assert prompt_tokens(answer.usage) == counted
    plain = client.messages.count_tokens(model="exact", messages=PLAIN.messages).input_tokens
    assert plain < counted


def test_a_marked_prefix_is_written_once_and_found_again(server) -> None:
    client = server.anthropic
    system = "Tokens are pieces of text, and models read them one by one. " * 12
    kept = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    usages = []
    for question in ("What is a token?", "What is a model?", "And a prompt?"):
        asked = {
            "model": "exact",
            "system": [kept],
            "messages": [{"role": "user", "content": question}],
        }
        counted = client.messages.count_tokens(**asked).input_tokens
        with client.messages.stream(**asked, max_tokens=8) as stream:
            usage = stream.get_final_message().usage
        assert prompt_tokens(usage) == counted
        usages.append(usage)
    first, *others = usages
    assert first.cache_creation_input_tokens > 100
    marked = first.cache_creation_input_tokens + first.cache_read_input_tokens
    for usage in others:
        assert usage.cache_creation_input_tokens == 0 < marked <= usage.cache_read_input_tokens


def prompt_tokens(usage: Usage) -> int:
    """All of them, known or not."""
    known = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return usage.input_tokens + known
