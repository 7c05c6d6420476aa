"""Streaming clients against a server that answers from a script."""

from __future__ import annotations

import asyncio

import pytest

from fake_openai import serving
from hearth.app.answer import Answer
from hearth.app.load_test import (
    Call,
    Load,
    NetworkTrouble,
    Served,
    Target,
    arrive,
    drive,
    first_model,
    is_loopback,
    parse_url,
    percentile,
    prompts,
    summarise,
)
from hearth.backends.contract.events import Finished, Token, Usage

LOAD = Load(requests=4, prompt_words=10, gen_tokens=8)


def served(url: str, clients: int = 2, load: Load = LOAD, **target: str) -> Served:
    base, api = parse_url(url)
    return asyncio.run(drive(Target(base, api, "fake-model", **target), load, clients))


def test_percentiles_lie_between_values() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("typed", "base", "api"),
    [
        ("http://host:1", "http://host:1/v1", "chat"),
        ("host:1/v1/", "http://host:1/v1", "chat"),
        ("https://host/api/v1/chat/completions", "https://host/api/v1", "chat"),
        ("http://host/v1/completions", "http://host/v1", "completions"),
    ],
)
def test_a_url_may_be_a_host_a_base_or_an_endpoint(typed: str, base: str, api: str) -> None:
    assert parse_url(typed) == (base, api)


@pytest.mark.parametrize("typed", ["ftp://host/v1", "http://", ""])
def test_what_is_no_http_address_is_refused(typed: str) -> None:
    with pytest.raises(NetworkTrouble):
        parse_url(typed)


def test_only_this_machine_is_loopback() -> None:
    assert is_loopback("http://127.0.0.1:4242/v1") and is_loopback("http://[::1]/v1")
    assert not is_loopback("http://127.evil.example/v1")
    assert not is_loopback("https://example.com/v1")


def test_prompts_share_what_was_asked_for_and_no_more() -> None:
    load = Load(requests=3, prompt_words=12, gen_tokens=1, shared_words=5)
    made = [prompt.split() for prompt in prompts(load, salt=4)]
    assert {len(words) for words in made} == {12}
    assert len({tuple(words[:5]) for words in made}) == 1
    assert len({words[5] for words in made}) == 3
    other = [prompt.split() for prompt in prompts(load, salt=8)]
    assert other[0][0] != made[0][0]


def test_requests_arrive_at_their_own_times() -> None:
    with serving(pieces=400) as fake:
        target = Target(parse_url(fake.url)[0], "chat", "fake-model")
        found = asyncio.run(arrive(target, Load(8, 10, 8), per_second=1e6, salt=3))
    assert (found.requests, found.failed, found.concurrency) == (8, 0, 8)
    assert len({body["messages"][0]["content"] for _, _, body in fake.requests}) == 8
    assert fake.connections > 1  # They do not wait for each other.


@pytest.mark.parametrize("path", ["", "/completions"])
def test_all_requests_are_made_and_counted(path: str) -> None:
    with serving(usage=7) as fake:
        found = served(fake.url + path, clients=3, load=Load(5, 10, 8))
    assert (found.requests, found.failed, len(fake.requests)) == (5, 0, 5)
    assert (found.counted_by, found.generated_tokens, found.prompt_tokens) == ("server", 35, 40)
    assert found.cached_tokens == 5 * 16
    assert found.tok_per_s > 0
    times = (found.ttft_p50_s, found.ttft_p95_s, found.itl_p50_s, found.itl_p95_s, found.itl_p99_s)
    assert all(seconds is not None and seconds >= 0 for seconds in times)
    assert 1 <= fake.connections <= 3


def test_the_request_is_what_an_openai_server_expects() -> None:
    with serving() as fake:
        served(fake.url, load=Load(1, 10, 8), api_key="secret")
        served(fake.url + "/completions", load=Load(1, 10, 8, ignore_eos=True))
    (path, headers, body), (other_path, other_headers, other) = fake.requests
    assert (path, other_path) == ("/v1/chat/completions", "/v1/completions")
    assert headers["authorization"] == "Bearer secret" and "authorization" not in other_headers
    assert (body["model"], body["max_tokens"], body["stream"]) == ("fake-model", 8, True)
    assert body["stream_options"] == {"include_usage": True} and "ignore_eos" not in body
    assert len(body["messages"][0]["content"].split()) == 10
    assert len(other["prompt"].split()) == 10 and other["ignore_eos"] is True


def test_pieces_are_counted_where_the_server_does_not_count() -> None:
    with serving(pieces=4) as fake:
        found = served(fake.url)
    assert (found.counted_by, found.generated_tokens, found.prompt_tokens) == ("pieces", 16, None)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"status": 503}, "is busy: no such thing"),
        ({"fault": "cut"}, "before a finish_reason"),
        ({"fault": "error"}, "it fell over"),
        ({"fault": "silent end"}, "before a finish_reason"),
        ({"fault": "noise"}, "a chunk is not JSON"),
    ],
)
def test_what_goes_wrong_is_counted_by_name(script: dict[str, object], error: str) -> None:
    with serving(**script) as fake:
        found = served(fake.url)
    [(message, count)] = found.errors.items()
    assert (found.failed, count) == (4, 4) and error in message


def test_a_server_that_is_not_there_fails_every_request() -> None:
    with serving() as fake:
        gone = fake.url
    found = served(gone)
    assert found.failed == 4 and found.ttft_p50_s is None
    assert "nobody listens there" in next(iter(found.errors))


def test_a_cut_stream_still_counts_the_tokens_that_came() -> None:
    calls = []
    for sent_s, gap_s, ended_s in ((0.0, 0.1, 2.0), (1.0, 0.3, 5.0)):
        times = iter((sent_s, sent_s + 0.5, sent_s + 0.5 + gap_s))
        answer = Answer(clock=lambda times=times: next(times))
        for text in ("one ", "two"):
            answer.add(Token(text))
        calls.append(Call(answer, ended_s, [gap_s]))
    calls[0].answer.add(Finished("length", Usage(40, 0, 10)))
    calls[1].error = "cut"
    found = summarise(calls, 2)
    assert (found.generated_tokens, found.tok_per_s, found.failed) == (12, 12 / 5, 1)
    assert (found.ttft_p50_s, found.itl_p50_s) == (0.5, 0.2)


def test_the_first_model_of_the_server_is_taken() -> None:
    with serving() as fake:
        assert asyncio.run(first_model(fake.url, "")) == "fake-model"


def test_a_server_without_models_or_none_at_all_is_network_trouble() -> None:
    with serving(models=()) as fake:
        with pytest.raises(NetworkTrouble, match="lists no model"):
            asyncio.run(first_model(fake.url, ""))
        gone = fake.url
    with pytest.raises(NetworkTrouble, match="cannot be reached") as caught:
        asyncio.run(first_model(gone, ""))
    assert "Is it running" in caught.value.hint
