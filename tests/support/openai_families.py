"""Questions in OpenAI's formats, by its client: chat, completions, responses."""

from __future__ import annotations

from typing import Any

from hearth.backends.contract.requests import Tool
from questions import Answer, Family, Json, Question, Said
from served import Served

# ---- /v1/chat/completions


def _chat_fields(question: Question) -> Json:
    fields: Json = {
        "model": question.model,
        "messages": question.messages,
        "max_completion_tokens": question.max_tokens,
        "temperature": question.temperature,
        "seed": question.seed,
        "n": question.n,
        "logprobs": question.logprobs,
    }
    if question.stop:
        fields["stop"] = list(question.stop)
    if question.tools:
        fields["tools"] = [{"type": "function", "function": function(t)} for t in question.tools]
        fields["tool_choice"] = "required" if question.required else "auto"
        fields["parallel_tool_calls"] = question.parallel
    if question.schema is not None:
        named = {"name": "answer", "schema": question.schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields


def function(tool: Tool) -> Json:
    """A tool in OpenAI's format."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _chat_tokens(logprobs: Any) -> list[tuple[str, float]]:
    return [(one.token, one.logprob) for one in logprobs.content] if logprobs is not None else []


def _chat_whole(served: Served, question: Question) -> Answer:
    made = served.openai.chat.completions.create(**_chat_fields(question))
    choices = []
    for choice in made.choices:
        message = choice.message
        thought = getattr(message, "reasoning_content", "")
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        choices.append(Said(message.content or "", thought, calls, choice.finish_reason))
        choices[-1].add_tokens(_chat_tokens(choice.logprobs))
    return _openai_answer(choices, made.usage)


def _chat_streamed(served: Served, question: Question) -> Answer:
    said = [Said() for _ in range(question.n)]
    usage = None
    for chunk in served.openai.chat.completions.create(
        **_chat_fields(question), stream=True, stream_options={"include_usage": True}
    ):
        assert usage is None, "the usage comes last"
        usage = chunk.usage
        for choice in chunk.choices:
            one, delta = said[choice.index], choice.delta
            assert not one.reason, "nothing comes after the reason"
            one.content += delta.content or ""
            one.reasoning += getattr(delta, "reasoning_content", "")
            one.reason = choice.finish_reason or ""
            for call in delta.tool_calls or ():
                one.add_call(call.index, call.function.name, call.function.arguments)
            one.add_tokens(_chat_tokens(choice.logprobs))
    return _openai_answer(said, usage)


def _openai_answer(choices: list[Said], usage: Any) -> Answer:
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    thought = usage.completion_tokens_details.reasoning_tokens
    return Answer(choices, usage.prompt_tokens, usage.completion_tokens, thought)


# ---- /v1/completions


def _completion_fields(question: Question) -> Json:
    fields: Json = {
        "model": question.model,
        "prompt": question.text,
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
        "seed": question.seed,
        "n": question.n,
    }
    if question.logprobs:
        fields["logprobs"] = 0
    if question.stop:
        fields["stop"] = list(question.stop)
    if question.schema is not None:
        named = {"name": "answer", "schema": question.schema}
        wanted = {"type": "json_schema", "json_schema": named}
        fields["extra_body"] = {"response_format": wanted}
    return fields


def _completion_tokens(logprobs: Any) -> list[tuple[str, float]]:
    if logprobs is None:
        return []
    return list(zip(logprobs.tokens, logprobs.token_logprobs, strict=True))


def _completion_whole(served: Served, question: Question) -> Answer:
    made = served.openai.completions.create(**_completion_fields(question))
    choices = []
    for choice in made.choices:
        choices.append(Said(choice.text, reason=choice.finish_reason))
        choices[-1].add_tokens(_completion_tokens(choice.logprobs))
    return _openai_answer(choices, made.usage)


def _completion_streamed(served: Served, question: Question) -> Answer:
    said = [Said() for _ in range(question.n)]
    usage = None
    for chunk in served.openai.completions.create(
        **_completion_fields(question), stream=True, stream_options={"include_usage": True}
    ):
        assert usage is None, "the usage comes last"
        usage = chunk.usage
        for choice in chunk.choices:
            one = said[choice.index]
            assert not one.reason, "nothing comes after the reason"
            one.content += choice.text
            one.reason = choice.finish_reason or ""
            one.add_tokens(_completion_tokens(choice.logprobs))
    return _openai_answer(said, usage)


# ---- /v1/responses


def _response_fields(question: Question) -> Json:
    fields: Json = {
        "model": question.model,
        "input": question.text,
        "max_output_tokens": question.max_tokens,
        "temperature": question.temperature,
        "extra_body": {"seed": question.seed},
    }
    if question.logprobs:
        fields["include"] = ["message.output_text.logprobs"]
    if question.tools:
        fields["tools"] = [
            {"type": "function", "strict": False, **function(tool)} for tool in question.tools
        ]
        fields["tool_choice"] = "required" if question.required else "auto"
        fields["parallel_tool_calls"] = question.parallel
    if question.schema is not None:
        wanted = {"type": "json_schema", "name": "answer", "schema": question.schema}
        fields["text"] = {"format": wanted}
    if question.stop:
        fields["extra_body"]["stop"] = list(question.stop)
    return fields


def _response_answer(response: Any) -> Answer:
    said = Said()
    for item in response.output:
        if item.type == "message":
            for part in item.content:
                said.content += part.text
                said.add_tokens((one.token, one.logprob) for one in part.logprobs)
        elif item.type == "reasoning":
            said.reasoning += "".join(part.text for part in item.content)
        else:
            said.calls.append((item.name, item.arguments))
    said.reason = "length" if response.status == "incomplete" else "stop"
    if said.calls and response.status == "completed":
        said.reason = "tool_calls"
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    thought = usage.output_tokens_details.reasoning_tokens
    return Answer([said], usage.input_tokens, usage.output_tokens, thought)


def _response_whole(served: Served, question: Question) -> Answer:
    made = served.openai.responses.create(**_response_fields(question))
    return _response_answer(made)


def _response_streamed(served: Served, question: Question) -> Answer:
    """The answer from the deltas, which must equal the whole answer in the last event."""
    said = Said()
    last = None
    for number, event in enumerate(
        served.openai.responses.create(**_response_fields(question), stream=True)
    ):
        assert event.sequence_number == number
        if event.type == "response.output_text.delta":
            said.content += event.delta
            said.add_tokens((one.token, one.logprob) for one in event.logprobs)
        elif event.type == "response.reasoning_text.delta":
            said.reasoning += event.delta
        elif event.type == "response.output_item.added" and event.item.type == "function_call":
            said.add_call(len(said.calls), event.item.name, "")
        elif event.type == "response.function_call_arguments.delta":
            said.add_call(len(said.calls) - 1, "", event.delta)
        last = event
    assert last is not None and last.type in ("response.completed", "response.incomplete")
    answer = _response_answer(last.response)
    said.reason = answer.choices[0].reason
    assert [said] == answer.choices
    return answer


CHAT = Family(_chat_whole, _chat_streamed, choices=True, logprobs=True)
COMPLETIONS = Family(
    _completion_whole, _completion_streamed, chat=False, choices=True, logprobs=True
)
RESPONSES = Family(_response_whole, _response_streamed, logprobs=True)
