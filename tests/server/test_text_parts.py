"""Text parts of one message reach the model the same in every API family, and in token counts."""

import pytest

USER = {"content": "What is\nthe best book?", "parts": ("What is", "the best book?")}
SYSTEM = {"content": "Be brief.\nBe kind.", "parts": ("Be brief.", "Be kind.")}
RESULT = {"content": "blue\ndeep", "parts": ("blue", "deep")}


def texts(said, kind="text"):
    """Parts in the API's format, with an additional empty one."""
    return [{"type": kind, "text": text} for text in (said["parts"][0], "", said["parts"][1])]


def chat():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "developer", "content": texts(SYSTEM)},
            {"role": "user", "content": texts(USER)},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": texts(RESULT)},
        ],
    }


def responses():
    return {
        "input": [
            {"role": "developer", "content": texts(SYSTEM, "input_text")},
            {"role": "user", "content": texts(USER, "input_text")},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": texts(RESULT, "input_text"),
            },
        ],
    }


def anthropic():
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": texts(RESULT)}
    return {
        "system": texts(SYSTEM),
        "messages": [
            {"role": "user", "content": texts(USER)},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/apply-template", chat()),
        ("/v1/responses", responses()),
        ("/v1/messages", {**anthropic(), "max_tokens": 9}),
        ("/v1/messages/count_tokens", anthropic()),
    ],
)
def test_parts_are_joined_by_a_newline_and_kept(endpoint, path, body):
    made = endpoint([{"text": "Hi"}, {"finish": "stop"}])
    assert made.post(path, {"model": "tiny", **body}).status == 200
    if made.host.requests:
        messages = made.asked["messages"]
        found = [(one["role"], one["content"], one["parts"]) for one in messages]
    else:
        [request] = [arguments[0] for name, *arguments in made.host.calls if name == "render"]
        found = [(one.role, one.content, one.parts) for one in request.messages]
    assert [role for role, _, _ in found] == ["system", "user", "assistant", "tool"]
    said = [{"content": content, "parts": parts} for _, content, parts in found]
    assert [said[0], said[1], said[3]] == [SYSTEM, USER, RESULT]
