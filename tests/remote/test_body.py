"""What is sent: every field of a request under the server's own name, or refused by ours."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from fake_remote import CHAT, COMPLETIONS, HELLO, VLLM, error_of, events_of, remote, serving
from hearth.backends.contract.events import Finished
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import BeamSearch, Constraint, Request, Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.remote.body import notices, write_body
from hearth.backends.remote.dialects import DIALECTS, kind_of

OFF = SamplingParams(temperature=0.5, top_k=0, top_p=0.9, min_p=0.0, repetition_window=-1)
USER = (Message("user", "hello"),)
ASK = Request(messages=USER, sampling=OFF)
ONCE = Request(text="Once", sampling=OFF, max_tokens=5)
KINDS = sorted(DIALECTS)
OPEN = sorted({"openai", "other"})
TOOL = Tool("add", "Adds.", {"type": "object"}, True)
REGEX = Constraint("regex", "a+")
CHOICE = Constraint("choice", json.dumps(["a.", 'b"']))
GRAMMAR = Constraint("grammar", "root ::= [ab]")


def body(kind, request=ASK, **changes):
    return write_body(replace(request, **changes), DIALECTS[kind], "cluster", "big")


def sampled(kind, **changes):
    return body(kind, sampling=replace(OFF, **changes))


def outcome(kind, request=ASK, **changes):
    """The body, or the parameter that is refused."""
    try:
        return body(kind, request, **changes)
    except UnsupportedParameter as error:
        return error.param


def refused(kind, **changes):
    with pytest.raises(UnsupportedParameter) as caught:
        body(kind, **changes)
    assert "cluster" in caught.value.message
    return caught.value.param


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_chat_is_one_that_every_server_knows(kind) -> None:
    made = body(kind)
    assert made["model"] == "big" and made["messages"] == [{"role": "user", "content": "hello"}]
    assert (made["temperature"], made["top_p"]) == (0.5, 0.9)
    assert made["stream"] is True and made["stream_options"]["include_usage"] is True
    json.dumps(made, allow_nan=False)
    if kind in OPEN:
        known = {"model", "messages", "temperature", "top_p", "stream", "stream_options"}
        assert set(made) == known


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("top_k", 40),
        ("min_p", 0.05),
        ("typical_p", 0.9),
        ("repetition_penalty", 1.1),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.5),
    ],
)
def test_openai_has_no_other_samplers_and_so_they_are_refused(kind, param, value) -> None:
    assert refused(kind, sampling=replace(OFF, **{param: value})) == param


def test_no_sampling_parameter_is_ignored_by_any_kind() -> None:
    """Each, set to something else, changes the body or is refused by its name."""
    on = SamplingParams(
        0.1, 3, 0.2, 0.3, 0.4, 1.2, -1, 0.5, 0.6, 0.7, 1.5, 3, 9, (".",), 0.8, 0.2, {5: -1.0}, 7, 2
    )
    others = SamplingParams(
        0.2, 4, 0.3, 0.4, 0.5, 1.3, 5, 0.6, 0.7, 0.8, 1.6, 4, 8, ("!",), 0.9, 0.3, {6: 1.0}, 8, 3
    )
    for kind, dialect in DIALECTS.items():
        allowed = {name: getattr(on, name) for name in dialect.names if hasattr(on, name)}
        base = replace(OFF, **allowed, frequency_penalty=0.5, seed=7, logprobs=2)
        before = body(kind, sampling=base)
        for field in fields(SamplingParams):
            changed = replace(base, **{field.name: getattr(others, field.name)})
            made = outcome(kind, sampling=changed)
            if field.name.startswith(("dry_", "xtc_")) and field.name not in dialect.names:
                steps = ("dry_multiplier", "xtc_probability")
                assert made == (field.name if field.name in steps else before)  # the step is off
            else:
                assert made == field.name or made != before, (kind, field.name)


def test_no_field_of_a_request_is_ignored_by_any_kind() -> None:
    changes = {
        "messages": (Message("user", "bye"),),
        "sampling": replace(OFF, temperature=0.9),
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop": ("END",),
        "n": 2,
        "priority": 5,
        "constraint": Constraint("json"),
        "tools": (TOOL,),
        "template_values": {"enable_thinking": False},
        "continue_last": True,
        "reuse_prefix": False,
        "suffix": "!",
        "stop_token_ids": (5,),
        "include_stop": True,
        "skip_special_tokens": False,
        "add_generation_prompt": False,
        "truncate_prompt_tokens": 8,
        "attention_sinks": 4,
        "speculate": "ngram",
        "speculate_rule": "rejection",
        "beams": BeamSearch(4),
    }
    with_tool = {
        "tool_choice": "required",
        "forced_tool": "add",
        "parallel_tool_calls": False,
    }
    elsewhere = {"text", "token_ids", "session"}
    assert {*changes, *with_tool, *elsewhere} == {field.name for field in fields(Request)}
    begun = (*USER, Message("assistant", "I"))
    for kind in KINDS:
        for name, value in {**changes, **with_tool}.items():
            base = replace(ASK, tools=(TOOL,)) if name in with_tool else ASK
            if name == "continue_last":
                base = replace(ASK, messages=begun)
            made = outcome(kind, base, **{name: value})
            if isinstance(made, str):
                assert made == name
            elif not (name == "continue_last" and kind == "llama-server"):  # it always continues
                assert made != outcome(kind, base), (kind, name)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("hearth", {"repetition_penalty": 1.1, "repetition_window": 9, "top_k": 0}),
        ("vllm", {"repetition_penalty": 1.1, "top_k": -1, "min_p": 0}),
        ("sglang", {"repetition_penalty": 1.1, "top_k": -1}),
        ("llama-server", {"repeat_penalty": 1.1, "repeat_last_n": 9, "top_k": 0}),
    ],
)
def test_samplers_have_the_names_that_a_server_knows(kind, sent) -> None:
    window = 9 if kind in ("hearth", "llama-server") else -1
    made = sampled(kind, repetition_penalty=1.1, repetition_window=window)
    assert {name: made[name] for name in sent} == sent


def test_a_window_of_penalties_that_a_server_does_not_have_is_refused() -> None:
    changed = replace(OFF, frequency_penalty=0.5, repetition_window=64)
    assert refused("vllm", sampling=changed) == "repetition_window"
    assert "frequency_penalty" in sampled("vllm", frequency_penalty=0.5)
    assert "repetition_window" not in sampled("vllm", repetition_window=64)


def test_dry_of_llama_server() -> None:
    made = sampled("llama-server", dry_multiplier=0.8, dry_window=100)
    assert (made["dry_multiplier"], made["dry_penalty_last_n"]) == (0.8, 100)
    assert made["dry_sequence_breakers"] == ["\n", ":", '"', "*"]


@pytest.mark.parametrize(
    ("kind", "seed", "sent"),
    [
        ("vllm", 2**64 - 1, -1),
        ("hearth", 2**63, -(2**63)),
        ("openai", 7, 7),
        ("llama-server", 2**33 + 5, 5),
        ("sglang", 2**63 + 5, 5),
    ],
)
def test_seeds_fit_into_what_a_server_reads(kind, seed, sent) -> None:
    assert sampled(kind, seed=seed)["seed"] == sent


def test_limits() -> None:
    made = body("vllm", max_tokens=5, min_tokens=2, ignore_eos=True, stop=("a", "b"), n=3)
    assert (made["max_tokens"], made["min_tokens"], made["ignore_eos"]) == (5, 2, True)
    assert (made["stop"], made["n"]) == (["a", "b"], 3)
    assert body("openai", max_tokens=5)["max_completion_tokens"] == 5
    assert refused("llama-server", min_tokens=2) == "min_tokens"


def test_priorities_keep_their_direction() -> None:
    assert body("hearth", priority=5)["priority"] == 5
    assert body("vllm", priority=5)["priority"] == -5
    assert refused("sglang", priority=5) == "priority"


def test_who_asks_is_only_told_to_another_hearth() -> None:
    assert body("hearth", session="http user ana")["user"] == "http user ana"
    assert all("ana" not in json.dumps(body(k, session="ana")) for k in KINDS if k != "hearth")


def test_a_prompt_that_must_be_computed_anew() -> None:
    assert body("hearth", reuse_prefix=False)["cache_prompt"] is False
    salts = {body("vllm", reuse_prefix=False)["cache_salt"] for _ in range(2)}
    assert len(salts) == 2
    assert refused("other", reuse_prefix=False) == "reuse_prefix"


@pytest.mark.parametrize(
    ("constraint", "kind", "sent"),
    [
        (REGEX, "hearth", {"response_format": {"type": "regex", "regex": "a+"}}),
        (REGEX, "vllm", {"structured_outputs": {"regex": "a+"}}),
        (REGEX, "sglang", {"regex": "a+"}),
        (CHOICE, "hearth", {"response_format": {"type": "choice", "choices": ["a.", 'b"']}}),
        (CHOICE, "vllm", {"structured_outputs": {"choice": ["a.", 'b"']}}),
        (CHOICE, "sglang", {"regex": '(a\\.|b")'}),
        (CHOICE, "llama-server", {"grammar": 'root ::= "a." | "b\\""'}),
        (GRAMMAR, "hearth", {"response_format": {"type": "grammar", "grammar": "root ::= [ab]"}}),
        (GRAMMAR, "llama-server", {"grammar": "root ::= [ab]"}),
    ],
)
def test_constraints_beyond_openais(constraint, kind, sent) -> None:
    made = body(kind, constraint=constraint)
    assert {name: made[name] for name in sent} == sent


@pytest.mark.parametrize(
    ("constraint", "kinds"),
    [
        (REGEX, ("openai", "other", "llama-server")),
        (CHOICE, ("openai", "other")),
        (GRAMMAR, ("openai", "other", "vllm", "sglang")),
    ],
)
def test_a_constraint_that_cannot_be_said_is_refused(constraint, kinds) -> None:
    for kind in kinds:
        assert refused(kind, constraint=constraint) == "constraint"


@pytest.mark.parametrize("kind", KINDS)
def test_json_and_schemas_are_openais(kind) -> None:
    assert body(kind, constraint=Constraint("json"))["response_format"] == {"type": "json_object"}
    made = body(kind, constraint=Constraint("json_schema", '{"type": "object"}'))
    assert made["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("kind", KINDS)
def test_tools_and_their_choice(kind) -> None:
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    made = body(kind, tools=(TOOL,), tool_choice="required", forced_tool="add")
    assert made["tools"] == [{"type": "function", "function": {**function, "strict": True}}]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    made = body(kind, tools=(TOOL,), parallel_tool_calls=False)
    assert (made["tool_choice"], made["parallel_tool_calls"]) == ("auto", False)


def test_tools_that_must_not_be_shown_are_not_sent() -> None:
    assert "tools" not in body("vllm", tools=(TOOL,), tool_choice="none")
    assert body("hearth", tools=(TOOL,), tool_choice="none")["tool_choice"] == "none"


def test_messages_keep_all_that_they_have() -> None:
    asked = (
        Message("user", "2+2?", name="ana"),
        Message("assistant", "", "hm", (ToolCall("c1", "add", '{"x":2}'),)),
        Message("tool", "4", tool_call_id="c1"),
    )
    made = body("vllm", messages=asked)["messages"]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x":2}'}}
    assert made == [
        {"role": "user", "content": "2+2?", "name": "ana"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    request = replace(ASK, messages=asked)
    assert "reasoning" not in json.dumps(body("openai", request))
    assert "reasoning" in notices(request, DIALECTS["openai"])[0]
    assert notices(request, DIALECTS["vllm"]) == ()


def test_what_should_be_kept_is_said_not_to_be() -> None:
    kept = replace(ASK, messages=(Message("user", "x", keep_s=300),))
    assert "not kept" in notices(kept, DIALECTS["vllm"])[0]


def test_values_of_the_template() -> None:
    values = {"enable_thinking": False, "reasoning_effort": "low"}
    made = body("vllm", template_values=values)
    assert made["chat_template_kwargs"] == {"enable_thinking": False}
    assert made["reasoning_effort"] == "low"
    assert body("openai", template_values={"reasoning_effort": "low"})["reasoning_effort"] == "low"
    assert refused("openai", template_values=values) == "template_values"


def test_an_answer_that_was_begun() -> None:
    begun = {"messages": (*USER, Message("assistant", "I"))}
    made = body("vllm", **begun, continue_last=True)
    assert (made["continue_final_message"], made["add_generation_prompt"]) == (True, False)
    assert body("hearth", **begun)["continue_final_message"] is False
    assert "continue_final_message" not in body("vllm", **begun)
    assert refused("openai", **begun, continue_last=True) == "continue_last"
    assert refused("llama-server", **begun) == "messages"


def test_completions() -> None:
    assert body("vllm", ONCE)["prompt"] == "Once"
    assert body("vllm", ONCE, text=None, token_ids=(1, 2))["prompt"] == [1, 2]
    assert body("openai", ONCE, suffix="!")["suffix"] == "!"
    assert refused("llama-server", text="a", messages=None, max_tokens=5, suffix="!") == "suffix"
    assert body("vllm", ONCE, sampling=replace(OFF, logprobs=3))["logprobs"] == 3


def test_a_completion_without_a_limit_is_no_16_tokens() -> None:
    assert body("vllm", ONCE, max_tokens=None)["max_tokens"] is None
    for kind in ("hearth", "sglang", "openai", "other"):
        assert refused(kind, text="a", messages=None) == "max_tokens"


def test_log_probabilities_of_a_chat() -> None:
    made = body("vllm", sampling=replace(OFF, logprobs=0))
    assert (made["logprobs"], made["top_logprobs"]) == (True, 0)


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([VLLM], "vllm"),
        ([{"owned_by": "sglang"}], "sglang"),
        ([{"owned_by": "llamacpp"}], "llama-server"),
        ([{"owned_by": "library", "hearth": {}}], "hearth"),
        ([{"owned_by": "system"}, {"owned_by": "openai"}, {"owned_by": "me"}], "openai"),
        ([{"owned_by": "library"}], "other"),
        ([{"owned_by": ["vllm"]}, {}], "other"),
        ([{"owned_by": "vllm"}, {"owned_by": "sglang"}], "other"),
    ],
)
def test_what_a_server_is_by_its_list(entries, kind) -> None:
    assert kind_of(entries) == kind


def test_a_refusal_is_an_event_and_nothing_is_sent() -> None:
    with serving(HELLO, models=({"id": "x", "owned_by": "someone"},)) as fake:
        error = error_of(remote(fake.url), Request(messages=USER))
        assert isinstance(error, UnsupportedParameter) and error.param == "top_k"
        bad = error_of(remote(fake.url), replace(ASK, max_tokens=0))
        assert isinstance(bad, InvalidParameter) and bad.param == "max_tokens"
        assert fake.requests == []


def test_settings_that_tell_all_cost_no_further_request(monkeypatch) -> None:
    monkeypatch.setenv("CLUSTER_KEY", "k1")
    with serving(HELLO) as fake:
        server = remote(fake.url, model="big", server="vllm", key_env="CLUSTER_KEY")
        for request in (ASK, ONCE):
            assert isinstance(events_of(server, request)[-1], Finished)
        assert fake.listings == 0
        assert [path for path, _, _ in fake.requests] == [CHAT, COMPLETIONS]
        _, headers, sent = fake.requests[0]
        assert headers["authorization"] == "Bearer k1" and sent["model"] == "big"
        assert headers["accept-encoding"] == "identity"
