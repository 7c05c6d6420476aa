"""Requests in the shapes that real clients were observed to send (`make clients`), with texts of
Hearth's own: each is answered, and its contents reach the model.

If a client sends a conversation with a tool result back, that is the request here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from asgi import JSON, Headers

HELLO = [{"prompt_tokens": 7}, {"text": "Hello."}, {"finish": "stop"}]
HOST = ("host", "localhost:4242")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = {**CITY, "additionalProperties": False}
DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", **CITY}
PERSON = {
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "age": {"title": "Age", "type": "integer"},
    },
    "required": ["name", "age"],
    "title": "Person",
    "type": "object",
}
MARK = {"cache_control": {"type": "ephemeral"}}
LARK = '%llguidance {}\n\nstart: ANSWER\nANSWER: "yes" | "no"\n'
CALL_TEXT = '{"city": "Bern"}'
ASKED = {"role": "user", "content": "How is the weather?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": CALL_TEXT}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


def function(name: str, schema: dict[str, Any] = CITY, **more: Any) -> dict[str, Any]:
    described = {"name": name, "description": "Of a city.", "parameters": schema, **more}
    return {"type": "function", "function": described}


def flat(name: str, schema: dict[str, Any] = CLOSED, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", **function(name, schema, strict=strict)["function"]}


def item(role: str, ident: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": ident, "role": role, "content": parts}


@dataclass(frozen=True)
class Shape:
    """One request.

    Attributes:
        roles: of the messages that reach the model; empty: none may.
        reached: other fields of the request that reaches the model.
        notices: words that must be in the notices; empty: there must be none.
        headers: in addition to the host and, unless `typed` is false, the content type.
    """

    client: str
    path: str
    body: dict[str, Any]
    roles: tuple[str, ...] = ()
    reached: dict[str, Any] | None = None
    notices: tuple[str, ...] = ()
    headers: Headers = ()
    typed: bool = True

    def __str__(self) -> str:
        return f"{self.client} {self.path}"


LOOP = ("user", "assistant", "tool")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SHAPES = [
    Shape(
        "Claude Code",
        "/v1/messages?beta=true",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Read it.", **MARK}]},
                {"role": "system", "content": "One may read files here."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "c1", "name": "Read", "input": {"city": "x"}}
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"tool_use_id": "c1", "type": "tool_result", "content": "1\tx", **MARK}
                    ],
                },
            ],
            "system": [{"type": "text", "text": "x"}, {"type": "text", "text": "Brief.", **MARK}],
            "tools": [
                {"name": "Read", "description": "x" * 18_800, "input_schema": DRAFT},
                {"name": "m" * 128, "description": "x", "input_schema": {"type": "object"}},
            ],
            "metadata": {"user_id": "x" * 150},
            "max_tokens": 32_000,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        },
        roles=("system", "user", "system", "assistant", "tool"),
        notices=("context_management",),
        headers=(
            ("anthropic-beta", "interleaved-thinking-2025-05-14,effort-2025-11-24"),
            ("anthropic-version", "2023-06-01"),
            ("anthropic-dangerous-direct-browser-access", "true"),
        ),
    ),
    Shape(
        "Codex",
        RESPONSES,
        {
            "stream": True,
            "input": [
                item("developer", "msg_1", "You write code."),
                item("developer", "msg_2", "Sandboxed.", "Ask first."),
                item("user", "msg_3", "Linux."),
                item("user", "msg_4", "Read it."),
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "c1",
                    "name": "run",
                    "arguments": "{}",
                    "status": "completed",
                },
                {"type": "function_call_output", "id": "o1", "call_id": "c1", "output": "x"},
            ],
            "tools": [
                flat("run"),
                {
                    "type": "namespace",
                    "name": "agents",
                    "description": "x",
                    "tools": [flat("start"), flat("stop")],
                },
                {"type": "web_search", "external_web_access": False},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "x",
            "client_metadata": {"session_id": "x", "turn_id": "y"},
        },
        roles=("system", "system", "user", "user", "assistant", "tool"),
        notices=("web_search", "prompt_cache_key", "client_metadata"),
        headers=(("x-codex-turn-metadata", '{"turn_id": "x"}'), ("originator", "codex_exec")),
    ),
    Shape(
        "opencode",
        CHAT,
        {
            "max_tokens": 32_000,
            "messages": [
                {"role": "system", "content": "You write code."},
                ASKED,
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                RESULT,
            ],
            "tools": [function("weather", DRAFT)],
            "tool_choice": "auto",
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        roles=("system", *LOOP),
    ),
    Shape(
        "aider ollama_chat/",
        "/api/chat",
        {
            "messages": [
                {"role": "system", "content": "You edit files.", "images": []},
                {**ASKED, "images": []},
            ],
            "options": {"temperature": 0, "num_ctx": 9_013},
            "stream": True,
        },
        roles=("system", "user"),
        typed=False,
    ),
    Shape(
        "openai parse, then the result",
        CHAT,
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": None,
                    "parsed": None,
                    "tool_calls": [
                        {
                            **CALL,
                            "index": 0,
                            "function": {
                                **CALL["function"],  # type: ignore[dict-item]
                                "parsed_arguments": {"city": "Bern"},
                            },
                        }
                    ],
                },
                RESULT,
            ],
            "tools": [function("weather", CLOSED, strict=True)],
        },
        roles=LOOP,
        notices=("parsed", "parsed_arguments"),
    ),
    Shape(
        "openai Responses",
        RESPONSES,
        {
            "input": [
                ASKED,
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "c1",
                    "name": "weather",
                    "arguments": CALL_TEXT,
                    "status": "completed",
                },
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            ],
            "include": [],
            "instructions": "Be brief.",
            "tools": [flat("weather", {**CLOSED, "title": "args"}, strict=True)],
        },
        roles=("system", *LOOP),
    ),
    Shape(
        "LiteLLM openai/",
        CHAT,
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "tool_calls": [{"index": 0, **CALL}],
                    "provider_specific_fields": {"refusal": None},
                },
                {**RESULT, "name": "weather"},
            ],
            "tools": [function("weather")],
        },
        roles=LOOP,
        notices=("provider_specific_fields",),
    ),
    Shape(
        "LiteLLM ollama/",
        "/api/generate",
        {
            "prompt": "### User:\nx\n\n",
            "options": {"num_predict": 16},
            "stream": False,
            "images": [],
        },
        roles=("user",),
        typed=False,
    ),
    Shape(
        "LiteLLM ollama_chat/",
        "/api/chat",
        {
            "messages": [
                {**ASKED, "images": []},
                {
                    "role": "assistant",
                    "content": "",
                    "images": [],
                    "tool_calls": [
                        {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
                    ],
                },
                {"role": "tool", "content": "sunny", "images": [], "tool_call_id": "of-litellm"},
            ],
            "options": {},
            "stream": False,
            "tools": [function("weather")],
        },
        roles=LOOP,
        typed=False,
    ),
    Shape("LiteLLM ollama/", "/api/show", {"name": "tiny"}),
    Shape(
        "LiteLLM anthropic/",
        MESSAGES,
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}]}],
            "tools": [{"type": "custom", "name": "weather", "input_schema": CITY}],
            "max_tokens": 4_096,
        },
        roles=("user",),
    ),
    Shape(
        "anthropic",
        MESSAGES,
        {"max_tokens": 16, "messages": [ASKED], "system": "Be brief."},
        roles=("system", "user"),
        headers=(("anthropic-version", "2026-10-21"), ("authorization", "Bearer none")),
    ),
    Shape(
        "langchain-openai",
        CHAT,
        {
            "stream": False,
            "messages": [ASKED],
            "max_completion_tokens": 64,
            "parallel_tool_calls": False,
            "temperature": 0.0,
            "tool_choice": {"type": "function", "function": {"name": "Person"}},
            "tools": [function("Person", PERSON)],
        },
        roles=("user",),
        reached={"forced_tool": "Person", "parallel_tool_calls": False},
    ),
    Shape(
        "langchain-ollama",
        "/api/chat",
        {
            "stream": True,
            "options": {"num_predict": 64, "temperature": 0.0},
            "format": PERSON,
            "messages": [ASKED],
            "tools": [],
        },
        roles=("user",),
    ),
    Shape(
        "langchain-ollama",
        "/api/embed",
        {
            "input": ["one", "two"],
            "options": dict.fromkeys(("mirostat", "num_ctx", "num_gpu", "stop", "tfs_z", "top_k")),
        },
    ),
    Shape(
        "instructor JSON",
        CHAT,
        {
            "messages": [{"role": "system", "content": "JSON."}, ASKED],
            "response_format": {"type": "json_object"},
            "temperature": 0,
        },
        roles=("system", "user"),
    ),
    Shape(
        "instructor JSON_SCHEMA, llm --schema",
        CHAT,
        {
            "messages": [ASKED],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "Person", "schema": PERSON},
            },
        },
        roles=("user",),
    ),
    Shape(
        "pydantic-ai",
        CHAT,
        {
            "stream": False,
            "messages": [ASKED],
            "max_completion_tokens": 300,
            "tool_choice": "required",
            "tools": [function("final_result", PERSON)],
        },
        roles=("user",),
        reached={"tool_choice": "required"},
    ),
    Shape(
        "outlines vllm",
        CHAT,
        {"messages": [ASKED], "max_tokens": 8, "structured_outputs": {"regex": "(yes|no)"}},
        roles=("user",),
        reached={"constraint": {"kind": "regex", "source": "(yes|no)"}},
    ),
    Shape(
        "guidance",
        CHAT,
        {
            "stream": True,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}]}],
            "logprobs": True,
            "top_logprobs": 5,
            "tools": None,
            "max_completion_tokens": 16,
            "stream_options": {"include_usage": True},
        },
        roles=("user",),
    ),
    Shape(
        "guidance's vLLM model",
        CHAT,
        {
            "messages": [ASKED],
            "top_p": None,
            "guided_decoding_backend": "guidance",
            "guided_grammar": LARK,
            "structured_outputs": {"grammar": LARK},
        },
        roles=("user",),
        notices=("guided_decoding_backend",),
    ),
    Shape(
        "lm-eval, a score",
        "/v1/completions",
        {
            "prompt": [[1, 2, 3]],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        },
    ),
    Shape("lm-eval, a tokenizer", "/tokenize", {"prompt": "x", "add_special_tokens": False}),
    Shape("lm-eval, a tokenizer", "/detokenize", {"tokens": [1]}),
    Shape(
        "ai-sdk",
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "?"}]},
                {
                    "type": "function_call",
                    "call_id": "c1",
                    "name": "weather",
                    "arguments": CALL_TEXT,
                },
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            ],
            "tools": [flat("weather", {**DRAFT, **CLOSED})],
            "tool_choice": "auto",
            "stream": True,
        },
        roles=LOOP,
    ),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_client_sends_is_answered(endpoint, shape: Shape) -> None:
    made = endpoint(HELLO)
    headers = [*(JSON if shape.typed else (HOST, ("user-agent", "litellm/1.0"))), *shape.headers]
    body = shape.body if "name" in shape.body else {"model": "tiny", **shape.body}
    reply = made.post(shape.path, body, headers)
    assert reply.status == 200, reply.body
    assert reply.complete
    if shape.roles:
        assert tuple(message["role"] for message in made.asked["messages"]) == shape.roles
        assert {**made.asked, **(shape.reached or {})} == made.asked
    notices = reply.headers.get("hearth-notices", "")
    assert bool(notices) == bool(shape.notices), notices
    assert [name for name in shape.notices if name not in notices] == []


def test_the_tokenizer_that_lm_eval_asks_for_names_no_model(endpoint) -> None:
    made = endpoint()
    assert {"eos_token", "bos_token", "chat_template"} <= made.get("/tokenizer_info").json.keys()
    tokens = made.post("/tokenize", {"prompt": "x", "add_special_tokens": False}).json["tokens"]
    assert made.post("/detokenize", {"tokens": tokens}).json["prompt"] == "x"
