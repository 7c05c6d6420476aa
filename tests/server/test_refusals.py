"""Refusals: their status, shape and parameter, and that nothing reaches the model; and fields that
are accepted without effect.
"""

from __future__ import annotations

from urllib.parse import unquote

import pytest

import asgi
from hearth.app.server.body import DEEPEST, MOST_BYTES
from hearth.app.server.errors import error_response
from hearth.app.server.tables.chat import CHAT as CHAT_TABLE
from hearth.backends import errors

CHAT_NAMES = {parameter.name for parameter in CHAT_TABLE}
USER = {"role": "user", "content": "hello"}
PICTURE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def assert_error(reply, status, param, code=None):
    assert reply.status == status, reply.body
    error = reply.error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["type"], str) and isinstance(error["code"], str)
    assert error["param"] == param
    assert code is None or error["code"] == code


# Wrong types and numbers beyond a range are tried for every field by test_matrix.py.
CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [SOUND]}]}, "messages[0].content[0].type"),
    ({"messages": [USER, {"role": "tool", "content": "1"}]}, "messages[1].tool_call_id"),
    ({"messages": [USER, {"role": "function", "content": "1"}]}, "messages[1].role"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"n_predict": 0}, "n_predict"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"logit_bias": {"foo": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"inlude_usage": 1}}, "stream_options.inlude_usage"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "regex", "regexp": "x"}}, "response_format.regexp"),
    ({"guided_json": "no JSON"}, "guided_json"),
    ({"guided_json": '{"type": "obj'}, "guided_json"),
    ({"guided_json": {}, "guided_regex": "x"}, "guided_regex"),
    ({"structured_outputs": {"regex": "x", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ({"temprature": 1}, "temprature"),
]


@pytest.mark.parametrize(("given", "param"), CHAT, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_chat_refuses_by_name(endpoint, given, param, stream) -> None:
    made = endpoint()
    body = {"stream": True, **given} if stream and "stream_options" not in given else given
    assert_error(made.chat(**body), 400, param)
    assert made.host.requests == []


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [[1], 2]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"suffix": "end", "prompt": [1]}, "suffix"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"beam_width": 2}, "beam_width"),
        ({"use_beam_search": True, "beam_width": 2, "n": 3}, "beam_width"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
    ],
    ids=str,
)
def test_completions_refuse_by_name(endpoint, given, param) -> None:
    made = endpoint()
    assert_error(made.complete(**given), 400, param)
    assert made.host.requests == []


def test_a_misspelling_is_refused_and_another_unknown_name_is_not(endpoint) -> None:
    made = endpoint()
    for name in ("temprature", "temperatures", "tempreature", "Temperature", "max_token"):
        assert_error(made.chat(**{name: 1}), 400, name, "invalid_parameter")
    for name in ("tmperatre", "seeds", "modul", "temperature_", "max_toks"):
        expected = 400 if name == "temperature_" else 200
        assert made.chat(**{name: 1}).status == expected, name


STARTED = [{"prompt_tokens": 7}, {"text": "Hello."}, {"finish": "stop"}]


def test_what_has_no_effect_is_reported(endpoint) -> None:
    made = endpoint(STARTED)
    fields = {"web_search_options": {"x": [1]}, "typ_unknown": None, "x" * 99: 1, "prediction": 5}
    part = {"type": "text", "text": "hello", "lang": "de"}
    messages = [{"role": "user", "content": [part, part]}]
    tools = [{"type": "custom", "custom": {"name": "x"}}]
    reply = made.chat(**fields, messages=messages, tools=tools)
    assert reply.json["notices"] == [
        f"{name} has no effect."
        for name in (
            "messages[].content[].lang",
            "web_search_options",
            "x" * 64,
            "prediction",
            "tools[] (custom)",
        )
    ]
    header = dict(reply.headers)["hearth-notices"]
    assert unquote(header).split("; ") == reply.json["notices"]
    assert not made.asked["tools"]


def test_notices_are_bounded(endpoint) -> None:
    names = [f"{number}é\n" + "n" * 80 for number in range(40)]
    reply = endpoint(STARTED).chat(**dict.fromkeys(names, 1))
    assert len(reply.json["notices"]) == 16
    assert reply.json["notices"][-1] == "Further parameters have no effect."
    header = dict(reply.headers)["hearth-notices"]
    assert len(header) <= 1024 and header.isascii() and "\n" not in header


def test_a_strict_server_refuses_what_has_no_effect(endpoint) -> None:
    made = endpoint(times={"strict": True})
    assert_error(made.chat(prediction={}), 400, "prediction", "unsupported_parameter")
    assert_error(made.chat(unknown=1), 400, "unknown", "unsupported_parameter")
    assert made.chat(store=False, stream_options=None).status == 200


def test_the_model_may_be_left_out(endpoint) -> None:
    made = endpoint()
    for model in ({}, {"model": None}, {"model": ""}):
        reply = made.post("/v1/chat/completions", {"messages": [USER], **model})
        assert (reply.status, reply.json["model"]) == (200, "tiny")
    assert made.post("/v1/generate", {"prompt": "Once"}).json["model"] == "tiny"


@pytest.mark.parametrize(
    "given",
    [
        {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"prompt_cache_key": "k", "safety_identifier": "s"},
        {name: None for name in CHAT_NAMES if name not in ("model", "messages")},
    ],
    ids=["stored", "no tools", "text", "cache", "null is absent"],
)
def test_what_asks_for_nothing_is_accepted(endpoint, given) -> None:
    assert endpoint().chat(**given).status == 200


def test_an_unknown_model_is_404_never_another(endpoint) -> None:
    made = endpoint()
    for name in ("gpt-4", "../tiny", "/etc/passwd", "tin", "./tiny"):
        assert_error(made.chat(model=name), 404, "model", "model_not_found")
    assert made.host.requests == []


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"hello"', b"42"])
def test_a_malformed_body_is_400(endpoint, body) -> None:
    assert_error(endpoint().post("/v1/chat/completions", body), 400, None, "invalid_parameter")


@pytest.mark.parametrize(
    "body",
    [b'{"a": ' + b"[" * DEEPEST + b"]" * DEEPEST + b"}", b'{"a": [' + b"0," * 250_000 + b"0]}"],
    ids=["too deep", "too many"],
)
def test_a_body_of_too_much_is_400(endpoint, body) -> None:
    assert_error(endpoint().post("/v1/chat/completions", body), 400, None, "limit_exceeded")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"temperature": NaN}', "temperature"),
        (b'{"temperature": -Infinity, "top_p": NaN}', "temperature"),
        (b'{"temperature": 1e400}', "temperature"),
        (b'{"tools": [{}, {"parameters": {"maximum": NaN}}]}', "tools[1].parameters.maximum"),
        (b"NaN", None),
    ],
    ids=str,
)
def test_a_number_that_json_lacks_is_named(endpoint, body, param) -> None:
    assert_error(endpoint().post("/v1/chat/completions", body), 400, param, "invalid_parameter")


def test_a_body_that_is_too_large_is_413(endpoint) -> None:
    made = endpoint()
    body = b'{"model": "' + b"x" * MOST_BYTES + b'"}'
    assert_error(made.post("/v1/chat/completions", body), 413, None, "body_too_large")
    lying = (("host", "localhost"), ("content-type", "application/json"), ("content-length", "2"))
    assert_error(made.post("/v1/chat/completions", body, lying), 413, None)
    declared = (*lying[:2], ("content-length", str(MOST_BYTES + 1)))
    assert_error(made.post("/v1/chat/completions", b"{}", declared), 413, None)


def test_no_compressed_body_is_read(endpoint) -> None:
    headers = (*asgi.JSON, ("content-encoding", "gzip"))
    reply = endpoint().post("/v1/chat/completions", b"{}", headers)
    assert_error(reply, 415, None, "unsupported_media_type")


def test_unknown_urls_and_methods(endpoint) -> None:
    made = endpoint()
    assert_error(made.get("/v1/nothing"), 404, None, "unknown_url")
    for path, allowed in (("/v1/chat/completions", "POST"), ("/health", "GET, HEAD")):
        for method in ("DELETE", "OPTIONS", "PUT"):
            reply = made.send(method, path)
            assert_error(reply, 405, None, "method_not_allowed")
            assert reply.headers["allow"] == allowed
    assert_error(made.get("/v1/chat/completions"), 405, None, "method_not_allowed")


def test_a_name_is_not_repeated_at_any_length(endpoint) -> None:
    assert len(endpoint().chat(model="x" * 1_000_000).body) < 1000


TREE = [
    errors.Busy("full", retry_after_s=1.2),
    errors.WorkerDied("dead"),
    errors.HostUnreachable("gone"),
    errors.PromptTooLong("messages", "long", prompt_tokens=9, context=5),
    errors.DoesNotFit("large"),
    errors.NoChatTemplate("none"),
    errors.TemplateError("broken"),
    errors.InternalError("defect"),
    errors.BackendUnavailable("missing"),
    errors.CorruptFile("corrupt"),
    errors.UnsupportedModel("strange"),
    errors.InvalidParameter("temperature", "hot"),
    errors.UnsupportedParameter("tools", "none"),
    errors.ModelNotFound("unknown"),
    errors.SettingsError("wrong"),
]


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.code)
def test_what_the_host_says_keeps_its_status(endpoint, error) -> None:
    info = errors.to_info(error)
    failed = {"code": info.code, "message": info.message, "hint": info.hint, "data": info.data}
    made = endpoint([{"error": failed}], [{"error": failed}])
    for reply in (made.chat(), made.chat(stream=True)):
        assert_error(reply, error.http_status, error.data.get("param"))
        assert reply.complete


def test_how_to_try_again_is_said() -> None:
    def headers(error):
        return error_response(error).headers

    assert headers(errors.Busy("full", retry_after_s=1.2))["retry-after"] == "2"
    assert headers(errors.Busy("full", retry_after_s=0.0))["retry-after"] == "1"
    assert "x-should-retry" not in headers(errors.WorkerDied("dead"))
    # It was unloaded on purpose: a client that retries by itself would load it again.
    assert headers(errors.WorkerDied("stopped", unloaded=True))["x-should-retry"] == "false"
    assert headers(errors.InternalError("defect"))["x-should-retry"] == "false"
    assert headers(errors.DoesNotFit("large"))["x-should-retry"] == "false"
    assert "x-should-retry" not in headers(errors.InvalidParameter("n", "zero"))


TOO_LONG = {"code": "prompt_too_long", "message": "9 tokens do not fit into 5."}
TURNS = [
    {"role": "system", "content": "Be brief."},
    *(USER, {"role": "assistant", "content": "hi"}),
    {"role": "user", "content": "and now?"},
]
SHORTER = [{"text": "Now"}, {"finish": "stop"}]


def test_a_prompt_that_is_too_long_has_the_name_that_programs_look_for(endpoint) -> None:
    for more in ({}, {"truncation": "disabled"}):
        made = endpoint([{"error": TOO_LONG}])
        reply = made.chat(messages=TURNS, **more)
        assert_error(reply, 400, None, "context_length_exceeded")
        assert len(made.host.requests) == 1
        assert "9" in reply.error["message"] and "5" in reply.error["message"]


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/chat/completions", {"truncation": "auto"}, {"messages": TURNS}),
        ("/v1/responses", {"truncation": "auto"}, {"input": TURNS}),
        ("/api/chat", {"truncate": True}, {"messages": TURNS, "stream": False}),
    ],
)
def test_whole_turns_are_left_out_where_a_request_says_so(endpoint, path, field, body) -> None:
    made = endpoint([{"error": TOO_LONG}], SHORTER)
    reply = made.post(path, {"model": "tiny", **body, **field})
    assert reply.status == 200 and "Now" in str(reply.json)
    assert reply.json["notices"] == [
        "9 tokens do not fit into 5. The 2 oldest messages are left out of it."
    ]
    sent = [[one["role"] for one in request["messages"]] for request in made.host.requests]
    assert sent == [["system", "user", "assistant", "user"], ["system", "user"]]
    if path == "/v1/responses":
        assert reply.json["truncation"] == "auto"
    # Even the last message alone does not fit: that is an error.
    made = endpoint([{"error": TOO_LONG}], [{"error": TOO_LONG}])
    assert made.post(path, {"model": "tiny", **body, **field}).status == 400
    assert len(made.host.requests) == 2


@pytest.mark.parametrize(
    "asked", [{"prompt_logprobs": 0}, {}, {"stream": True}], ids=["logprobs", "ids", "stream"]
)
def test_the_tokens_of_a_prompt_are_those_that_were_sent(endpoint, asked) -> None:
    made = endpoint([{"error": TOO_LONG}], [{"prompt_tokens": 7}, *SHORTER])
    body = {"messages": TURNS, "truncation": "auto", "return_token_ids": True, **asked}
    reply = made.chat(**body)
    first = reply.events[0] if "stream" in asked else reply.json
    sent = made.host.calls[0][1].messages
    assert [message.content for message in sent] == ["Be brief.", "and now?"]
    assert len(first["prompt_token_ids"]) == len("<system>Be brief.\n<user>and now?")
    if "prompt_logprobs" in asked:
        assert len(first["prompt_logprobs"]) == len(first["prompt_token_ids"])


SEARCH = {"type": "web_search"}
BAD = {"name": "f", "parameters": {"type": "array"}}
GOOD = {"name": "g"}
ONLY_F = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
CUT_OFF = {"name": "f", "arguments": '{"a": 1e999}'}
CALLED = [{"role": "assistant", "tool_calls": [{"function": CUT_OFF}]}, USER]
KEPT = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
RESULT = {"type": "tool_result", "tool_use_id": "c"}
SPACE = {"type": "namespace", "name": "s", "tools": [SEARCH, {"type": "function", **BAD}]}
CALL_ITEM = {"type": "function_call", "call_id": "c", **CUT_OFF}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}


def functions(*tools):
    return [tool if tool is SEARCH else {"type": "function", "function": tool} for tool in tools]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (path, {"messages": [USER], "tools": functions(SEARCH, BAD)}, "tools[1].function")
        for path in ("/v1/chat/completions", "/api/chat", "/tokenize", "/apply-template")
    ]
    + [
        (path, {"messages": CALLED}, "messages[0].tool_calls[0].arguments")
        for path in ("/v1/chat/completions", "/api/chat", "/tokenize", "/apply-template")
    ]
    + [
        (
            "/v1/chat/completions",
            {
                "messages": [USER],
                "tools": functions(GOOD, BAD),
                "tool_choice": {"type": "allowed_tools", "allowed_tools": ONLY_F},
            },
            "tools[1].function",
        ),
        (
            "/v1/messages",
            {
                "messages": [USER],
                "max_tokens": 9,
                "tools": [
                    {"type": "web_search_1", "name": "g"},
                    {"name": "f", "input_schema": BAD["parameters"]},
                ],
            },
            "tools[1].input_schema",
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    {"role": "user", "content": [RESULT, RESULT]},
                    *[{"role": "user", "content": [KEPT]}] * 9,
                ],
                "max_tokens": 9,
            },
            "messages[9].cache_control",
        ),
        ("/v1/responses", {"input": "a", "tools": [SEARCH, SPACE]}, "tools[1].tools[1].parameters"),
        ("/v1/responses", {"input": [USER, THOUGHT, CALL_ITEM]}, "input[2].arguments"),
    ],
)
def test_an_item_of_an_array_has_the_number_that_the_client_gave_it(
    endpoint, path, body, param
) -> None:
    made = endpoint(flags={"system": "Be brief."})
    reply = made.post(path, {"model": "tiny", **body})
    error = reply.error if isinstance(reply.error, dict) else reply.json
    assert (reply.status, made.host.requests) == (400, [])
    assert error["param"].startswith(param)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_host_refuses_has_the_number_that_the_client_gave_it(endpoint, stream) -> None:
    param = "tools[0].parameters"
    failed = {
        "code": "invalid_parameter",
        "message": f"{param} has no type.",
        "data": {"param": param},
    }
    made = endpoint([{"error": failed}])
    reply = made.chat(tools=functions(SEARCH, GOOD, {"name": "f"}), stream=stream)
    assert_error(reply, 400, "tools[1].function.parameters")
    assert reply.error["message"].startswith("tools[1].function.parameters has")


@pytest.mark.parametrize(
    ("items", "message", "item"),
    [([USER, THOUGHT], 1, 1), ([USER, THOUGHT, USER], 1, 1), ([USER, THOUGHT, USER], 2, 2)],
)
def test_reasoning_alone_has_the_number_of_its_item(endpoint, items, message, item) -> None:
    param = f"messages[{message}].content"
    failed = {"code": "invalid_parameter", "message": "Too odd.", "data": {"param": param}}
    reply = endpoint([{"error": failed}]).post("/v1/responses", {"input": items})
    assert_error(reply, 400, f"input[{item}].content")


def test_a_token_that_the_model_lacks_is_named_as_it_was_sent(endpoint) -> None:
    failed = {
        "code": "invalid_parameter",
        "message": "token_ids has the token id 999.",
        "data": {"param": "token_ids"},
    }
    made = endpoint([{"error": failed}], [{"error": failed}])
    for stream in (False, True):
        reply = made.complete(prompt=[999], stream=stream)
        assert_error(reply, 400, "prompt")
        assert reply.error["message"].startswith("prompt has")


@pytest.mark.parametrize(
    ("path", "field", "prompts", "param"),
    [
        ("/v1/completions", "prompt", ["a", "b", "long"], "text"),
        ("/v1/completions", "prompt", ["a", "b", [999]], "token_ids"),
        ("/v1/generate/batch", "prompts", ["a", "b", "long"], "text"),
    ],
)
def test_a_prompt_that_is_refused_has_its_number(endpoint, path, field, prompts, param) -> None:
    failed = {**TOO_LONG, "data": {"param": param}}
    made = endpoint(SHORTER, SHORTER, [{"error": failed}])
    reply = made.post(path, {"model": "tiny", field: prompts})
    assert_error(reply, 400, f"{field}[2]")
    assert reply.error["message"].startswith(TOO_LONG["message"])
