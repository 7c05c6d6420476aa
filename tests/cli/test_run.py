"""`hearth run` and a bare `hearth` with piped text."""

from __future__ import annotations

import json

import pytest

ANSWER = [
    {"prompt_tokens": 7},
    {"text": "Hel"},
    {"text": "lo."},
    {"finish": "stop"},
]
DIED = {"error": {"code": "worker_died", "message": "The process died.", "hint": "Ask again."}}


def said(result):
    """(role, content) of the messages of the first request."""
    messages = result.host.requests[0]["messages"]
    return [(message["role"], message["content"]) for message in messages]


def test_the_answer_is_all_that_stdout_gets(hearth) -> None:
    result = hearth("run", "tiny", "hi", answers=[ANSWER])
    assert (result.code, result.out, result.err) == (0, "Hello.\n", "")


def test_thoughts_are_told_on_stderr_and_are_no_part_of_the_answer(hearth) -> None:
    thinks = [{"reasoning": "Hm."}, {"reasoning": " Yes."}, *ANSWER]
    result = hearth("run", "tiny", "hi", answers=[thinks])
    assert (result.code, result.out, result.err) == (0, "Hello.\n", "Hm. Yes.\n")
    result = hearth("run", "tiny", "hi", "--json", answers=[thinks])
    assert (result.json["text"], result.json["reasoning"]) == ("Hello.", "Hm. Yes.")


def test_words_are_joined_and_piped_text_comes_first(hearth) -> None:
    result = hearth("run", "tiny", "sum", "it", "up", stdin="a long text\n", answers=[ANSWER])
    assert said(result) == [("user", "a long text\n\nsum it up")]


@pytest.mark.parametrize("args", [(), ("run", "tiny")], ids=["bare", "run"])
def test_piped_text_alone_is_a_prompt(hearth, args) -> None:
    result = hearth(*args, stdin="why?\n", answers=[ANSWER])
    assert (result.code, result.out) == (0, "Hello.\n")
    assert said(result) == [("user", "why?")]


def test_a_byte_order_mark_is_no_text(hearth) -> None:
    result = hearth("run", "tiny", stdin=b"\xef\xbb\xbfhi", answers=[ANSWER])
    assert result.host.requests[0]["messages"][0]["content"] == "hi"


def test_piped_bytes_that_are_no_text_are_refused(hearth) -> None:
    result = hearth("run", "tiny", stdin=b"ok \xff\xfe")
    assert result.code == 2
    assert "not UTF-8" in result.err and "0xff at 3" in result.err


@pytest.mark.parametrize("args", [(), ("run", "tiny"), ("run", "tiny", "--raw")])
def test_nothing_to_ask_is_wrong_usage(hearth, args) -> None:
    result = hearth(*args, stdin="")
    assert result.code == 2
    assert result.out == ""


def test_an_empty_pipe_opens_no_chat_at_a_terminal(hearth, monkeypatch) -> None:
    monkeypatch.setattr("hearth.app.cli.output.Output.narrates_to_terminal", True)
    assert hearth("run", "tiny", stdin="").code == 2


def test_settings_and_flags_reach_the_request(hearth, home) -> None:
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text(
        'system = "Be brief."\n[sampling]\ntop_k = 5\nmin_p = 0.5\n[models.tiny]\ncontext = 128\n'
    )
    flags = ["--min-p", "0.25", "--temperature", "0", "--seed", "42", "--max-tokens", "9"]
    flags += ["--stop", "A", "--stop", "B", "--logit-bias", "5=-100", "--logit-bias", "6=1"]
    flags += ["--kv-type", "f32", "--gpu-layers", "0", "--threads", "3"]
    result = hearth("run", *flags, "tiny", "hi", answers=[ANSWER])
    assert result.code == 0, result.err
    request, spec = result.host.requests[0], result.host.specs[-1]
    sampling = request["sampling"]
    assert (sampling["top_k"], sampling["min_p"], sampling["temperature"]) == (5, 0.25, 0.0)
    assert (sampling["seed"], request["max_tokens"], request["stop"]) == (42, 9, ("A", "B"))
    assert sampling["logit_bias"] == {5: -100.0, 6: 1.0}
    assert said(result)[0] == ("system", "Be brief.")
    load = spec["settings"]
    assert (load["context"], load["kv_type"], load["gpu_layers"], load["threads"]) == (
        128,
        "f32",
        0,
        3,
    )


def test_ctx_and_system_flags_win(hearth, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_CONTEXT", "64")
    result = hearth("run", "tiny", "hi", "--ctx", "256", "--system", "No.", answers=[ANSWER])
    assert result.host.specs[-1]["settings"]["context"] == 256
    assert result.host.requests[0]["messages"][0]["content"] == "No."


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--temperature", "11", "from 0 to 10"),
        ("--top-p", "0", "above 0 to 1"),
        ("--kv-type", "f8", "q8_0"),
        ("--ctx", "0", "from 1"),
        ("--kv-budget", "0", "512MiB"),
        ("--max-waiting", "-1", "from 0"),
        ("--target-itl-ms", "0", "from 1"),
        ("--seed", "-1", "from 0"),
        ("--max-tokens", "none", "whole number"),
        ("--logit-bias", "x=1", "token ids"),
        ("--backend", "vllm", "llamacpp"),
        ("--temprature", "1", "--temperature"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_allowed(hearth, flag, value, said) -> None:
    result = hearth("run", "tiny", "hi", flag, value)
    assert result.code == 2
    assert flag in result.err and said in result.err
    assert result.host.requests == []


def test_raw_completes_text_without_a_template(hearth) -> None:
    result = hearth(
        "run", "--raw", "tiny", "Once", answers=[ANSWER], info={"has_chat_template": False}
    )
    assert result.code == 0
    assert (result.host.requests[0]["text"], result.host.requests[0]["messages"]) == ("Once", None)


def test_a_model_without_a_template_is_told_of_raw(hearth) -> None:
    result = hearth("run", "tiny", "hi", info={"has_chat_template": False})
    assert result.code == 1
    assert "no chat template" in result.err and "--raw" in result.err
    assert result.host.requests == []


def test_stats_go_to_stderr(hearth) -> None:
    result = hearth("run", "tiny", "hi", "--stats", "--seed", "3", answers=[ANSWER])
    assert result.out == "Hello.\n"
    headline, numbers = result.err.splitlines()
    assert headline == "tiny · F32 · context 512 · f16 KV"
    assert (
        numbers == "prompt 7 tokens · answer 2 tokens · TTFT 0.250 s · decode 50.0 tok/s · seed 3"
    )


def test_notices_are_always_said_once(hearth) -> None:
    answer = [{"prompt_tokens": 7, "notices": ["The system prompt was dropped."]}, *ANSWER[1:]]
    result = hearth("run", "tiny", "hi", answers=[answer], info={"notices": ["A slower mode."]})
    assert result.out == "Hello.\n"
    assert result.err.splitlines() == ["A slower mode.", "The system prompt was dropped."]


def test_json_is_one_object_with_stable_keys(hearth) -> None:
    result = hearth(
        "run", "tiny", "hi", "--json", "--seed", "3", answers=[ANSWER], info={"notices": ["n"]}
    )
    assert (result.code, result.err) == (0, "")
    assert result.json == {
        "model": "tiny",
        "backend": "llamacpp",
        "quantization": "F32",
        "context": 512,
        "kv_type": "f16",
        "text": "Hello.",
        "reasoning": None,
        "finish_reason": "stop",
        "stop": None,
        "seed": 3,
        "usage": {
            "prompt_tokens": 7,
            "cached_tokens": 0,
            "completion_tokens": 2,
            "reasoning_tokens": 0,
            "kept_tokens": 0,
        },
        "timings": {
            "queued_s": 0.0,
            "ttft_s": 0.25,
            "prefill_s": 0.0,
            "decode_s": 0.0,
            "prefill_tok_per_s": 0.0,
            "decode_tok_per_s": 50.0,
            "drafted_tokens": [],
            "accepted_tokens": [],
        },
        "notices": ["n"],
        "logprobs": None,
        "error": None,
    }


def test_a_fresh_seed_is_drawn_and_told(hearth) -> None:
    results = [hearth("run", "tiny", "hi", "--json", answers=[ANSWER]) for _ in range(2)]
    seeds = [result.json["seed"] for result in results]
    assert seeds == [result.host.requests[0]["sampling"]["seed"] for result in results]
    assert seeds[0] != seeds[1]


def test_no_seed_is_drawn_for_rejection_sampling(hearth, monkeypatch) -> None:
    """It would be refused, as a seed does not repeat such a text."""
    monkeypatch.setenv("HEARTH_SPECULATE_RULE", "rejection")
    result = hearth("run", "tiny", "hi", "--json", answers=[ANSWER])
    assert result.code == 0 and result.json["seed"] is None
    assert result.host.requests[0]["sampling"]["seed"] is None


def test_log_probabilities_come_with_json(hearth) -> None:
    result = hearth("run", "tiny", "hi", "--json", "--logprobs", "0", answers=[ANSWER])
    assert [item["text"] for item in result.json["logprobs"]] == ["Hel", "lo."]
    assert hearth("run", "tiny", "hi", "--logprobs", "0").code == 2


def test_json_and_stats_together_give_both(hearth) -> None:
    result = hearth("run", "tiny", "hi", "--json", "--stats", answers=[ANSWER])
    assert result.json["text"] == "Hello."
    assert "answer 2 tokens" in result.err


def test_raw_text_has_no_system_prompt_and_says_so(hearth) -> None:
    result = hearth("run", "--raw", "--system", "Be brief.", "tiny", "Once", answers=[ANSWER])
    assert result.code == 2
    assert "--raw has no system prompt" in result.err


def test_a_text_of_a_flag_must_be_utf8(hearth) -> None:
    for flag in ("--system", "--stop"):
        result = hearth("run", "tiny", "hi", flag, "ok \udcff", answers=[ANSWER])
        assert result.code == 2
        assert flag in result.err and "UTF-8" in result.err


def test_json_after_two_dashes_is_a_prompt(hearth) -> None:
    assert hearth("run", "nothing", "--", "--json").err.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("worker_died", 1),
        ("prompt_too_long", 1),
        ("invalid_parameter", 2),
        ("model_not_found", 3),
        ("does_not_fit", 4),
        ("an_error_of_the_future", 1),
    ],
)
def test_a_failure_keeps_the_text_and_has_its_exit_code(hearth, error, code) -> None:
    failed = {"error": {"code": error, "message": "It broke.", "hint": "Mend it."}}
    result = hearth("run", "tiny", "hi", answers=[[{"text": "Hel"}, failed]])
    assert (result.code, result.out) == (code, "Hel\n")
    assert result.err.splitlines() == ["error: It broke.", "Mend it."]


def test_a_failure_in_json_stands_beside_the_text(hearth) -> None:
    result = hearth("run", "tiny", "hi", "--json", answers=[[*ANSWER[:2], DIED]])
    assert result.code == 1
    assert (result.json["text"], result.json["finish_reason"]) == ("Hel", "error")
    usage = result.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 1)
    assert result.json["error"] == {
        "code": "worker_died",
        "message": "The process died.",
        "hint": "Ask again.",
        "data": {},
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-tokens", "2"], "(cut at --max-tokens 2)"),
        ([], "(cut: the context of 512 tokens is full)"),
    ],
)
def test_a_cut_answer_does_not_look_finished(hearth, flags, said) -> None:
    answer = [{"text": "a"}, {"text": "b"}, {"finish": "length"}]
    result = hearth("run", "tiny", "hi", *flags, answers=[answer])
    assert (result.out, result.err) == ("ab\n", f"{said}\n")


def test_an_error_of_loading_has_its_exit_code_and_json(hearth) -> None:
    info = {"error": {"code": "does_not_fit", "message": "It needs 9 GB; there are 8."}}
    assert hearth("run", "tiny", "hi", info=info).code == 4
    result = hearth("run", "tiny", "hi", "--json", info=info)
    assert result.code == 4
    assert result.json["error"]["code"] == "does_not_fit"
    assert result.err == ""


def test_hostile_text_stays_data_in_a_pipe(hearth) -> None:
    payload = "\x1b]0;owned\x07"
    result = hearth("run", "tiny", "hi", answers=[[{"text": payload}, {"finish": "stop"}]])
    assert result.out == payload + "\n"
    result = hearth(
        "run", "tiny", "hi", "--json", answers=[[{"text": payload}, {"finish": "stop"}]]
    )
    assert json.loads(result.out)["text"] == payload


@pytest.mark.parametrize("words", [("--offline", "run"), ("run", "--offline")])
def test_offline_may_stand_before_or_after_the_command(hearth, words) -> None:
    assert hearth(*words, "tiny", "hi").code == 0
