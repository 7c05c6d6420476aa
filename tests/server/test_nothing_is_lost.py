"""Everything in a body reaches the model, or is refused; nothing is dropped silently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_host import FakeBackend, FakeHost
from hearth.app.server.tables.chat import MOST_CALLS
from suiting_host import SuitingHost

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
USER = {"role": "user", "content": "hello"}


def said(made):
    return [(m["role"], m["reasoning"], m["content"]) for m in made.asked["messages"]]


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([USER, THOUGHT], [("user", "", "hello"), ("assistant", "Hm.", "")]),
        ([THOUGHT, USER], [("assistant", "Hm.", ""), ("user", "", "hello")]),
        ([THOUGHT, THOUGHT, CALL], [("assistant", "Hm.\nHm.", "")]),
        (
            [CALL, THOUGHT, OUTPUT],
            [("assistant", "", ""), ("assistant", "Hm.", ""), ("tool", "", "1")],
        ),
        ([{"type": "reasoning"}], [("assistant", "", "")]),
    ],
)
def test_thoughts_are_kept_wherever_they_stand(endpoint, items, turns) -> None:
    made = endpoint()
    assert made.post("/v1/responses", {"model": "tiny", "input": items}).status == 200
    assert said(made) == turns


def test_a_refusal_stands_beside_content(endpoint) -> None:
    made = endpoint()
    answer = {"role": "assistant", "content": "I ", "refusal": "cannot."}
    made.chat(messages=[USER, answer, USER])
    assert said(made)[1] == ("assistant", "", "I \ncannot.")


def test_two_limits_are_a_conflict_unless_they_are_one(endpoint) -> None:
    made = endpoint()
    refused = made.chat(max_tokens=5, max_completion_tokens=6)
    assert refused.error["code"] == "conflicting_parameters"
    assert refused.error["param"] == "max_completion_tokens"
    assert made.chat(max_tokens=5, max_completion_tokens=5).status == 200
    assert made.asked["max_tokens"] == 5


def test_a_token_has_one_name_in_logit_bias(endpoint) -> None:
    reply = endpoint().chat(logit_bias={"1": 5, "01": -5})
    assert (reply.status, reply.error["param"]) == (400, "logit_bias")


def test_null_is_absent_also_for_the_kind_of_an_object(endpoint) -> None:
    made = endpoint()
    call = {"id": "c", "type": None, "function": {"name": "f", "arguments": "{}"}}
    assert made.chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}]).status == 200
    items = [{"type": None, **USER}]
    assert made.post("/v1/responses", {"model": "tiny", "input": items}).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}),
        ("/v1/completions", {"prompt": "Once", "echo": True, "logprobs": 1}),
    ],
)
def test_requests_of_users_take_turns_everywhere(endpoint, path, body) -> None:
    made = endpoint(host_kind=SuitingHost)
    assert made.post(path, {"model": "tiny", **body, "user": "ann"}).status == 200
    assert ("session", "http user ann") in made.host.calls


@pytest.mark.parametrize("user", ["ü" * 256, "\U0001f600" * 256])
def test_a_user_of_many_bytes_is_one_session(endpoint, user) -> None:
    made = endpoint(host_kind=SuitingHost)
    assert made.chat(user=user).status == 200
    first = made.asked["session"]
    assert made.chat(user=user[:-1]).status == 200
    assert made.asked["session"] != first
    assert made.chat(user=user).status == 200
    assert made.asked["session"] == first


def test_texts_are_counted_in_characters(endpoint) -> None:
    made = endpoint(host_kind=SuitingHost)
    tool = {"name": "f", "description": "ü" * 16_384}
    reply = made.chat(stop=["ü" * 256], tools=[{"type": "function", "function": tool}])
    assert reply.status == 200, reply.body


def test_more_calls_than_a_turn_may_have_are_refused_by_name(endpoint) -> None:
    made = endpoint(host_kind=SuitingHost)
    reply = made.post("/v1/responses", {"model": "tiny", "input": [CALL] * (MOST_CALLS + 1)})
    assert (reply.status, reply.error["code"]) == (400, "limit_exceeded")
    assert reply.error["param"].startswith("input")


def test_a_dimension_that_vectors_lack_is_not_supported(endpoint) -> None:
    reply = endpoint().post("/v1/embeddings", {"model": "tiny", "input": "a", "dimensions": 9})
    assert (reply.error["code"], reply.error["param"]) == ("unsupported_parameter", "dimensions")


class Noticing(FakeHost):
    def backend(self, spec, session=""):
        return NoticingBackend(self, spec)


class NoticingBackend(FakeBackend):
    async def render(self, request):
        return replace(await super().render(request), notices=("Of the template.",))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once", "max_tokens": 0}),
        ("/api/chat", {"messages": [USER], "options": {"num_predict": 0}}),
        ("/v1/messages/count_tokens", {"messages": [USER]}),
        ("/tokenize", {"messages": [USER]}),
        ("/apply-template", {"messages": [USER]}),
    ],
)
def test_notices_of_prompts_that_are_not_run_are_returned(endpoint, path, body) -> None:
    made = endpoint(host_kind=Noticing)
    reply = made.post(path, {"model": "tiny", "elsewhere": 1, **body})
    assert reply.json["notices"] == ["elsewhere has no effect.", "Of the template."]
    assert reply.headers["hearth-notices"] == "elsewhere has no effect.; Of the template."


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/generate/batch", {"prompts": ["Once"]}),
    ],
)
def test_notices_of_answers_are_in_the_body_and_the_header(endpoint, path, body) -> None:
    started = {"prompt_tokens": 7, "notices": ["Of the template."]}
    reply = endpoint([started, {"text": "Hi"}, {"finish": "stop"}]).post(path, body)
    assert reply.json["notices"] == ["Of the template."]
    assert reply.headers["hearth-notices"] == "Of the template."


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
def test_prompts_ask_for_one_call_at_a_time_as_answers_do(endpoint, path) -> None:
    made = endpoint()
    body = {"model": "tiny", "messages": [USER], "parallel_tool_calls": False}
    assert made.post(path, body).status == 200
    [request] = [arguments[0] for name, *arguments in made.host.calls if name == "render"]
    assert request.one_call


@pytest.mark.parametrize(
    ("form", "ignored", "neutral"),
    [
        ({"content": "a"}, {"tools": [{"function": {"name": "f"}}]}, {"tools": []}),
        ({"content": "a"}, {"chat_template_kwargs": {"thinking": True}}, {}),
        ({"content": "a"}, {"continue_final_message": True}, {"continue_final_message": False}),
        ({"content": "a"}, {"parallel_tool_calls": False}, {"parallel_tool_calls": True}),
        ({"content": "a"}, {"add_generation_prompt": True}, {"add_generation_prompt": False}),
        ({"messages": [USER]}, {"add_special_tokens": True}, {"add_special_tokens": False}),
        ({"messages": [USER]}, {"parse_special": False}, {"parse_special": True}),
    ],
    ids=str,
)
def test_fields_for_the_other_form_of_tokenize_conflict(endpoint, form, ignored, neutral) -> None:
    made = endpoint()
    assert made.post("/tokenize", {"model": "tiny", **form, **neutral}).status == 200
    reply = made.post("/tokenize", {"model": "tiny", **form, **ignored})
    assert (reply.status, reply.error["code"]) == (400, "conflicting_parameters")
    assert [reply.error["param"]] == list(ignored)
