"""What comes back: chunks of either API as our events, however they are cut."""

from __future__ import annotations

import pytest

from fake_remote import (
    CHAT,
    COMPLETIONS,
    DONE,
    HELLO,
    Reply,
    data,
    delta,
    events_of,
    remote,
    serving,
    usage,
    using,
)
from hearth.backends.contract.events import (
    ChoiceFinished,
    Failed,
    Finished,
    Progress,
    Started,
    Token,
    ToolCallPart,
)
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams

ASK = Request(messages=(Message("user", "hello"),))


def events(body, request=ASK, **more):
    with serving(Reply(tuple(body), **more)) as fake:
        return events_of(remote(fake.url), request)


def tokens(found):
    return [(event.text, event.channel) for event in found if isinstance(event, Token)]


def test_a_chat_is_started_tokens_and_the_end() -> None:
    with serving(HELLO) as fake:
        found = events_of(remote(fake.url), ASK)
    assert isinstance(found[0], Started)
    assert tokens(found) == [("Hi", "content"), (" you", "content")]
    last = found[-1]
    assert isinstance(last, Finished) and last.reason == "stop"
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 2)
    assert last.timings.ttft_s > 0
    assert last.notices == ()


def test_a_completion_has_its_text_in_the_choice() -> None:
    body = (
        data({"choices": [{"index": 0, "text": "Once", "finish_reason": None}]}),
        data({"choices": [{"index": 0, "text": " more", "finish_reason": "length"}]}),
        usage(),
        DONE,
    )
    with serving({COMPLETIONS: Reply(body)}) as fake:
        found = events_of(remote(fake.url), Request(text="a"))
    assert tokens(found) == [("Once", "content"), (" more", "content")]
    assert found[-1].reason == "length"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("piece_bytes", [1, 3, 0])
def test_events_may_be_cut_anywhere_and_end_in_any_way(ending, piece_bytes) -> None:
    body = b": ping\n\n" + delta(content="grüße 🌍\n") + delta(reason="stop") + usage() + DONE
    body = body.replace(b"\n", ending)
    found = events([body], piece_bytes=piece_bytes)
    assert tokens(found) == [("grüße 🌍\n", "content")]
    assert isinstance(found[-1], Finished)


def test_utf8_that_is_no_ascii_may_be_cut_in_a_character() -> None:
    raw = 'data: {"choices":[{"delta":{"content":"ü🌍"},"finish_reason":"stop"}]}\n\n'.encode()
    found = events([raw, usage(), DONE], piece_bytes=1)
    assert tokens(found) == [("ü🌍", "content")]


def test_data_may_have_several_lines_and_no_space() -> None:
    body = b'data:{"choices":[{"delta":\ndata: {"content":"a"},"finish_reason":"stop"}]}\n\n'
    assert tokens(events([body, DONE])) == [("a", "content")]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_channel_of_its_own(name) -> None:
    body = (delta(**{name: "hm"}), delta(content="4", **{name: "!"}), delta(reason="stop"), DONE)
    assert tokens(events(body)) == [("hm", "reasoning"), ("!", "reasoning"), ("4", "content")]


def test_both_names_of_reasoning_at_once_are_one_text() -> None:
    body = (delta(reasoning="hm", reasoning_content="hm"), delta(reason="stop"), DONE)
    assert tokens(events(body)) == [("hm", "reasoning")]


def call(index=None, ident=None, name=None, arguments=None):
    made = {"function": {"name": name, "arguments": arguments}}
    return {**made, **({} if index is None else {"index": index}), "id": ident}


def calls(*parts, reason="tool_calls"):
    body = [delta(tool_calls=[part]) for part in parts]
    return [
        event
        for event in events([*body, delta(reason=reason), DONE])
        if isinstance(event, ToolCallPart | Finished)
    ]


def test_tool_calls_in_pieces() -> None:
    *parts, last = calls(
        call(0, "a", "add", ""),
        call(0, None, None, '{"x":'),
        call(0, None, None, "1}"),
        call(1, "b", "sub", "{}"),
    )
    assert parts == [
        ToolCallPart(0, "a", "add", ""),
        ToolCallPart(0, arguments='{"x":'),
        ToolCallPart(0, arguments="1}"),
        ToolCallPart(1, "b", "sub", "{}"),
    ]
    assert last.reason == "tool_calls"


def test_id_and_name_are_told_once_though_a_server_repeats_them() -> None:
    *parts, _ = calls(call(0, "a", "add", "{"), call(0, "a", "add", "}"))
    assert parts == [ToolCallPart(0, "a", "add", "{"), ToolCallPart(0, arguments="}")]


def test_calls_without_a_number_are_told_apart_by_their_ids() -> None:
    *parts, _ = calls(
        call(None, "a", "add", "{}"), call(None, "b", "sub", "{"), call(None, None, None, "}")
    )
    assert [(part.position, part.id, part.arguments) for part in parts] == [
        (0, "a", "{}"),
        (1, "b", "{"),
        (1, "", "}"),
    ]


def test_calls_with_the_same_number_are_told_apart_by_their_ids() -> None:
    *parts, _ = calls(
        call(0, "a", "add", "{"),
        call(0, "b", "sub", ""),
        call(0, None, None, "{}"),
        call(0, "a", None, "}"),
        call(1, "c", "mul", "{"),
        call(1, None, None, "}"),
    )
    assert [(part.position, part.id, part.name, part.arguments) for part in parts] == [
        (0, "a", "add", "{"),
        (1, "b", "sub", ""),
        (1, "", "", "{}"),
        (0, "", "", "}"),
        (2, "c", "mul", "{"),
        (2, "", "", "}"),
    ]


def test_calls_with_the_same_id_are_told_apart_by_their_numbers() -> None:
    *parts, _ = calls(call(0, "a", "add", "{}"), call(1, "a", "sub", "{}"))
    assert [(part.position, part.name) for part in parts] == [(0, "add"), (1, "sub")]


def test_a_call_without_an_id_gets_one_and_the_reason_says_that_there_is_a_call() -> None:
    part, last = calls(call(0, None, "add", "{}"), reason="stop")
    assert part.id.startswith("call_") and last.reason == "tool_calls"


def test_several_choices_finish_one_by_one() -> None:
    body = (
        delta(0, content="a"),
        delta(1, content="x"),
        delta(1, "length"),
        delta(0, "stop"),
        usage(),
        DONE,
    )
    found = events(body, Request(messages=ASK.messages, n=2))
    assert [(e.text, e.index) for e in found if isinstance(e, Token)] == [("a", 0), ("x", 1)]
    ends = [event for event in found if isinstance(event, ChoiceFinished)]
    assert ends == [ChoiceFinished(1, "length"), ChoiceFinished(0, "stop")]
    assert found[-1].reason == "stop"


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_the_stop_string_that_ended_it_is_told(name) -> None:
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", name: "END"}]}
    assert events([data(chunk), DONE])[-1].stop == "END"
    chunk["choices"][0][name] = 151645
    assert events([data(chunk), DONE])[-1].stop is None


@pytest.mark.parametrize("none", ["", "null"])
def test_other_ways_to_write_that_there_is_no_reason_yet(none) -> None:
    body = [delta(reason=none, content="a"), delta(reason=none, content="b")]
    found = events([*body, delta(reason="length"), delta(reason="stop"), delta(reason=none), DONE])
    assert tokens(found) == [("a", "content"), ("b", "content")] and found[-1].reason == "length"
    last = events([*body, DONE])[-1]
    assert isinstance(last, Failed) and last.error.code == "remote_cut"


def test_all_kinds_of_tokens_are_counted() -> None:
    more = {
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    used = events([delta(reason="stop"), usage(9, 4, **more), DONE])[-1].usage
    assert (used.prompt_tokens, used.cached_tokens) == (9, 5)
    assert (used.completion_tokens, used.reasoning_tokens) == (4, 3)


def test_usage_that_comes_with_every_chunk_is_known_from_the_start() -> None:
    first = {"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 9}}
    found = events([data(first), delta(reason="stop"), usage(9, 1), DONE])
    assert found[0] == Started(9)
    assert found[-1].usage.completion_tokens == 1


def test_a_server_that_counts_nothing_is_not_guessed_at() -> None:
    last = events([delta(content="a"), delta(reason="stop"), DONE])[-1]
    assert last.usage.completion_tokens == 0
    assert last.notices == ("The other end does not say how many tokens it used.",)


def test_what_a_content_filter_ended_is_said() -> None:
    last = events([delta(content="a"), delta(reason="content_filter"), usage(), DONE])[-1]
    assert last.reason == "stop" and "filter" in last.notices[0]


def test_progress_of_a_prefill_is_passed_on() -> None:
    body = (b": prefill 512/2048\n\n", b": waiting\n\n", delta(content="a"))
    found = events([*body, delta(reason="stop"), DONE])
    assert found[:2] == [Started(0), Progress(512, 2048)]
    chunk = {"choices": [], "prompt_progress": {"total": 9, "processed": 4, "cache": 0}}
    found = events([data(chunk), delta(reason="stop"), DONE])
    assert found[:2] == [Started(0), Progress(4, 9)]


def test_notices_and_timings_of_another_hearth_are_passed_on() -> None:
    first = {"choices": [{"delta": {"role": "assistant"}}], "notices": ["No system prompt."]}
    last = {"choices": [], "usage": {"prompt_tokens": 1}, "timings": {"ttft_s": 0.25}}
    last["notices"] = ["A call could not be read."]
    found = events([data(first), delta(reason="stop"), data(last), DONE])
    assert found[0].notices == ("No system prompt.",)
    assert found[-1].timings.ttft_s == 0.25
    assert found[-1].notices == ("A call could not be read.",)


def test_log_probabilities_of_a_chat() -> None:
    tops = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.1}]
    drawn = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": tops}
    choice = {"delta": {"content": "a"}, "logprobs": {"content": [drawn]}, "finish_reason": "stop"}
    request = Request(messages=ASK.messages, sampling=SamplingParams(logprobs=2))
    [token] = [e for e in events([data({"choices": [choice]}), DONE], request) if type(e) is Token]
    assert (token.ids, token.logprobs[0].text, token.logprobs[0].logprob) == ((), "a", -0.5)
    assert [(text, value) for _, text, value in token.logprobs[0].top] == [("b", -0.1), ("a", -0.5)]


def test_log_probabilities_of_a_completion() -> None:
    values = {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"a": -0.5, "b": -0.1}],
        "text_offset": [0],
    }
    chunk = {"choices": [{"text": "a", "logprobs": values, "finish_reason": "stop"}]}
    request = Request(text="x", sampling=SamplingParams(logprobs=2))
    [token] = [e for e in events([data(chunk), DONE], request) if type(e) is Token]
    assert token.logprobs[0].top[0][1:] == ("b", -0.1)


def test_lone_surrogates_become_the_replacement_character() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a\\ud800b"},"finish_reason":"stop"}]}\n\n'
    assert tokens(events([raw, DONE])) == [("a\ufffdb", "content")]


def test_one_connection_serves_many_requests() -> None:
    with serving(HELLO) as fake:

        async def twice(backend):
            for _ in range(2):
                assert [e async for e in backend.generate(ASK)][-1].reason == "stop"

        using(remote(fake.url), twice)
        assert (fake.connections, fake.listings) == (1, 1)
        assert [path for path, _, _ in fake.requests] == [CHAT, CHAT]


def test_leaving_a_stream_closes_its_connection_at_once() -> None:
    with serving(Reply((delta(content="a"),), how="hold")) as fake:

        async def leave(backend):
            stream = backend.generate(ASK)
            async for event in stream:
                if isinstance(event, Token):
                    break
            await stream.aclose()
            assert fake.left.wait(10)

        using(remote(fake.url), leave)


def test_leaving_before_the_first_byte_closes_the_connection_too() -> None:
    import asyncio

    with serving(Reply(how="hold")) as fake:

        async def leave(backend):
            task = asyncio.ensure_future(anext(backend.generate(ASK)))
            await asyncio.to_thread(fake.holding.wait, 10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert fake.left.wait(10)

        using(remote(fake.url), leave)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "1" * 400, '"x"'])
def test_log_probabilities_are_numbers(value) -> None:
    choice = '{"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": %s}]}}'
    request = Request(messages=ASK.messages, sampling=SamplingParams(logprobs=0))
    last = events((f'data: {{"choices": [{choice % value}]}}\n\n'.encode(), DONE), request)[-1]
    assert isinstance(last, Failed) and last.error.code == "remote_malformed"


def test_what_is_impossible_has_a_log_probability_that_can_be_written() -> None:
    choice = (
        '{"delta": {"content": "a"}, "finish_reason": "stop",'
        ' "logprobs": {"content": [{"token": "a", "logprob": -Infinity}]}}'
    )
    request = Request(messages=ASK.messages, sampling=SamplingParams(logprobs=0))
    body = (f'data: {{"choices": [{choice}], "timings": {{"ttft_s": 1e999}}}}\n\n'.encode(), DONE)
    found = events(body, request)
    assert [e.logprobs[0].logprob for e in found if isinstance(e, Token)] == [-9999.0]
    assert isinstance(found[-1], Finished) and found[-1].timings.ttft_s == 0
