"""Questions in the formats of Anthropic, by its client, and of Ollama."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from openai_families import function
from questions import Answer, Family, Json, Question, Said
from served import Served

# ---- /v1/messages


def _message_fields(question: Question) -> Json:
    fields: Json = {
        "model": question.model,
        "messages": question.messages,
        "max_tokens": question.max_tokens,
        "extra_body": {"temperature": question.temperature, "seed": question.seed},
    }
    if question.stop:
        fields["stop_sequences"] = list(question.stop)
    if question.tools:
        fields["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in question.tools
        ]
        fields["tool_choice"] = {
            "type": "any" if question.required else "auto",
            "disable_parallel_tool_use": not question.parallel,
        }
    if question.schema is not None:
        wanted = {"type": "json_schema", "schema": question.schema}
        fields["output_config"] = {"format": wanted}
    return fields


_ANTHROPIC_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def _message_answer(message: Any) -> Answer:
    said = Said(reason=_ANTHROPIC_REASONS[message.stop_reason])
    for block in message.content:
        if block.type == "text":
            said.content += block.text
        elif block.type == "thinking":
            said.reasoning += block.thinking
        else:
            said.calls.append((block.name, json.dumps(block.input)))
    usage = message.usage
    prompt = usage.input_tokens
    prompt += usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return Answer([said], prompt, usage.output_tokens)


def _message_whole(served: Served, question: Question) -> Answer:
    return _message_answer(served.anthropic.messages.create(**_message_fields(question)))


def _message_streamed(served: Served, question: Question) -> Answer:
    """The answer from the deltas, which must equal the client's assembled message."""
    said = Said()
    with served.anthropic.messages.stream(**_message_fields(question)) as stream:
        for event in stream:
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                said.add_call(len(said.calls), event.content_block.name, "")
            elif event.type == "content_block_delta":
                if event.delta.type == "text_delta":
                    said.content += event.delta.text
                elif event.delta.type == "thinking_delta":
                    said.reasoning += event.delta.thinking
                elif event.delta.type == "input_json_delta":
                    said.add_call(len(said.calls) - 1, "", event.delta.partial_json)
        answer = _message_answer(stream.get_final_message())
    said.reason = answer.choices[0].reason
    assert _as_objects(said) == _as_objects(answer.choices[0])
    answer.choices = [said]
    return answer


def _as_objects(said: Said) -> tuple[Any, ...]:
    calls = [(name, json.loads(arguments or "{}")) for name, arguments in said.calls]
    return said.content, said.reasoning, calls, said.reason


# ---- /api/chat


def _ollama_fields(question: Question) -> Json:
    options: Json = {
        "temperature": question.temperature,
        "seed": question.seed,
        "num_predict": question.max_tokens,
    }
    if question.stop:
        options["stop"] = list(question.stop)
    fields: Json = {"model": question.model, "messages": question.messages, "options": options}
    if question.tools:
        fields["tools"] = [{"type": "function", "function": function(t)} for t in question.tools]
    if question.schema is not None:
        fields["format"] = question.schema
    return fields


def _ollama_answer(lines: Iterable[Json]) -> Answer:
    said, last = Said(), {}
    for line in lines:
        assert not last, "nothing comes after the end"
        message = line["message"]
        said.content += message["content"]
        said.reasoning += message.get("thinking", "")
        for call in message.get("tool_calls", ()):
            function = call["function"]
            said.calls.append((function["name"], json.dumps(function["arguments"])))
        last = line if line["done"] else {}
    said.reason = last["done_reason"]
    if said.calls and said.reason == "stop":
        said.reason = "tool_calls"
    return Answer([said], last["prompt_eval_count"], last["eval_count"])


def _ollama_whole(served: Served, question: Question) -> Answer:
    made = served.http.post("/api/chat", json={**_ollama_fields(question), "stream": False})
    made.raise_for_status()
    return _ollama_answer([made.json()])


def _ollama_streamed(served: Served, question: Question) -> Answer:
    with served.http.stream("POST", "/api/chat", json=_ollama_fields(question)) as answer:
        answer.raise_for_status()
        return _ollama_answer(map(json.loads, answer.iter_lines()))


MESSAGES = Family(_message_whole, _message_streamed, exact_arguments=False)
OLLAMA = Family(_ollama_whole, _ollama_streamed, required=False, exact_arguments=False)
