"""A server that is away, slow, wrong or dishonest: what is said of it, and by which error."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from fake_remote import (
    CHAT,
    DONE,
    HELLO,
    VLLM,
    Reply,
    answer,
    data,
    delta,
    error_of,
    events_of,
    listening,
    remote,
    serving,
    usage,
    using,
)
from hearth.backends.contract.events import Failed, Token
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request
from hearth.backends.errors import (
    Busy,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
    WorkerDied,
)
from hearth.backends.remote import sse
from hearth.backends.remote.errors import (
    RemoteCut,
    RemoteDenied,
    RemoteFailed,
    RemoteKeyMissing,
    RemoteMalformed,
    RemoteModelMissing,
    RemoteTimeout,
    RemoteUnreachable,
    RemoteUntrusted,
)

ASK = Request(messages=(Message("user", "hello"),))
KEY = "sk-the-secret-key-123"
HI = delta(content="Hi")


def failing(reply, **more):
    """What a chat fails with that is answered by `reply`."""
    with serving(reply) as fake:
        return error_of(remote(fake.url, **more), ASK)


def refusal(status, error, headers=(), **more):
    return failing(answer({"error": error}, status, headers=headers), **more)


@pytest.fixture
def nobody():
    """A URL where nobody listens, as the port is bound and not more."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def test_nobody_listens(nobody) -> None:
    error = error_of(remote(nobody), ASK)
    assert isinstance(error, RemoteUnreachable) and error.http_status == 503
    assert nobody in error.message and "nobody listens" in error.message


def test_an_unknown_name(monkeypatch) -> None:
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = error_of(remote("http://cluster.example/v1"), ASK)
    assert isinstance(error, RemoteUnreachable)
    assert "the name cluster.example is not known" in error.message


def test_a_tls_handshake_that_nobody_answers_is_a_slow_connection() -> None:
    async def silent(reader, writer):
        await reader.read()

    with listening(silent) as address:
        error = error_of(remote(f"https://{address}/v1", timeout_s=0.05), ASK)
    assert isinstance(error, RemoteTimeout) and error.http_status == 504
    assert "takes no connection within 0.05 s" in error.message


def test_tls_with_a_server_that_has_none() -> None:
    async def plain(reader, writer):
        writer.write(b"HTTP/1.1 400 X\r\n\r\n")
        await writer.drain()
        await reader.read()

    with listening(plain) as address:
        error = error_of(remote(f"https://{address}/v1"), ASK)
    assert isinstance(error, RemoteUntrusted)
    assert "https or http" in error.hint


def test_no_first_byte() -> None:
    error = failing(
        {CHAT: Reply(how="hold"), "/v1/models": answer({"data": [VLLM]})}, timeout_s=0.5
    )
    assert isinstance(error, RemoteTimeout)


def test_a_stream_that_goes_silent_keeps_its_text() -> None:
    with serving(Reply((HI,), how="hold")) as fake:
        *_, token, last = events_of(remote(fake.url, timeout_s=0.5), ASK)
    assert isinstance(token, Token) and token.text == "Hi"
    assert last.error.code == "remote_timeout" and "silent for 0.5 s" in last.error.message


@pytest.mark.parametrize(
    "body",
    [
        (HI,),
        (HI, delta(reason="stop")),
        (HI, DONE),
        (HI, delta(reason="stop"), usage()),
        (HI, DONE[:-4]),
        (),
    ],
    ids=["text", "finish", "done alone", "no done", "half a done", "nothing"],
)
@pytest.mark.parametrize("how", ["cut", "whole"])
def test_a_stream_that_is_not_whole_never_looks_finished(body, how) -> None:
    error = failing(Reply(body, how=how))
    assert isinstance(error, RemoteCut) and error.http_status == 502


def test_one_of_several_answers_that_has_no_end() -> None:
    body = (delta(0, content="a"), delta(0, "stop"), delta(1, content="b"), DONE)
    with serving(Reply(body)) as fake:
        error = error_of(remote(fake.url), Request(messages=ASK.messages, n=2))
    assert isinstance(error, RemoteCut)


def test_a_connection_that_is_cut_before_the_answer() -> None:
    async def rude(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    with listening(rude) as address:
        assert isinstance(error_of(remote(f"http://{address}/v1"), ASK), RemoteCut)


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (data({"error": {"message": "it fell over", "code": 500}}), RemoteFailed, "it fell over"),
        (data({"error": "it fell over"}), RemoteFailed, "it fell over"),
        (data({"object": "error", "message": "bad", "code": 400}), InvalidParameter, "bad"),
        (b'event: error\ndata: {"message": "no"}\n\n', RemoteFailed, "no"),
        (b'error: {"message": "no", "code": 503}\n\n', Busy, "no"),
        (data({"error": {"message": "gone", "code": "worker_died"}}), WorkerDied, "gone"),
        (data({"error": {"message": "full", "type": "rate_limit_error"}}), Busy, "full"),
    ],
)
def test_an_error_in_a_stream_is_the_end_of_it(event, kind, words) -> None:
    error = failing(Reply((HI, event, delta(reason="stop"), DONE)))
    assert type(error) is kind and words in error.message


@pytest.mark.parametrize("reason", ["abort", "error", 7])
def test_an_answer_that_was_aborted_is_no_answer(reason) -> None:
    assert isinstance(failing(Reply((HI, delta(reason=reason), DONE))), RemoteFailed)


def test_a_key_that_is_refused_names_the_variable_and_never_the_key(monkeypatch) -> None:
    monkeypatch.setenv("CLUSTER_KEY", KEY)
    said = {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}
    error = refusal(401, said, key_env="CLUSTER_KEY")
    assert isinstance(error, RemoteDenied)
    assert "the variable CLUSTER_KEY" in error.hint and "[key]" in error.message
    assert KEY not in repr((error, error.message, error.hint, error.data))


def test_a_key_that_is_asked_for() -> None:
    error = failing(answer({"error": "Unauthorized"}, 401))
    assert isinstance(error, RemoteDenied)
    assert "asks for a key" in error.message and "key_env of remotes.cluster" in error.hint


def test_a_key_in_an_error_of_a_stream_is_hidden_too(monkeypatch) -> None:
    monkeypatch.setenv("CLUSTER_KEY", KEY)
    said = data({"error": {"message": f"{KEY} has no money left"}})
    error = failing(Reply((said,)), key_env="CLUSTER_KEY")
    assert error.message == "cluster failed: [key] has no money left"


def test_a_missing_key_is_said_before_anything_is_sent(monkeypatch) -> None:
    monkeypatch.delenv("CLUSTER_KEY", raising=False)
    with serving(HELLO) as fake:
        error = error_of(remote(fake.url, key_env="CLUSTER_KEY"), ASK)
        assert isinstance(error, RemoteKeyMissing) and "CLUSTER_KEY" in error.message
        monkeypatch.setenv("CLUSTER_KEY", "two\nlines")
        error = error_of(remote(fake.url, key_env="CLUSTER_KEY"), ASK)
        assert isinstance(error, RemoteKeyMissing) and "two" not in str(error)
        assert (fake.connections, fake.requests) == (0, [])


def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    missing = answer({"error": {"message": "The model `huge` does not exist."}}, 404)
    with serving({CHAT: missing}, models=(VLLM, {"id": "small"})) as fake:
        error = error_of(remote(fake.url, model="huge", server="vllm"), ASK)
    assert isinstance(error, RemoteModelMissing)
    assert "'huge'" in error.message and "big, small" in error.hint


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"error": {"message": "huge is not loaded."}}, RemoteModelMissing, "huge is not loaded."),
        ({"detail": "Not Found"}, RemoteMalformed, "nothing there"),
    ],
)
def test_a_404_of_a_server_without_a_list_of_models(body, kind, words) -> None:
    with serving({CHAT: answer(body, 404)}, models=None) as fake:
        error = error_of(remote(fake.url, model="huge", server="vllm"), ASK)
    assert isinstance(error, kind) and words in error.message


def test_several_models_and_no_choice() -> None:
    with serving(HELLO, models=(VLLM, {"id": "small"})) as fake:
        error = error_of(remote(fake.url), ASK)
    assert isinstance(error, RemoteModelMissing)
    assert "has 2 models" in error.message and "big, small" in error.hint


def test_a_url_that_is_no_api() -> None:
    with serving({}, models=None) as fake:
        for server in (remote(fake.url), remote(fake.url, model="big", server="vllm")):
            error = error_of(server, ASK)
            assert isinstance(error, RemoteMalformed)
            assert "404" in error.message and "/v1" in error.hint


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [((("Retry-After", "7"),), 7.0), ((), 1.0), ((("Retry-After", "nan"),), 1.0)],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_says_when_to_try_again(status, headers, wait_s) -> None:
    error = refusal(status, {"message": "Too many requests"}, headers)
    assert isinstance(error, Busy) and error.data["retry_after_s"] == wait_s


def test_a_date_to_try_again_at_that_is_past() -> None:
    error = refusal(429, "busy", (("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),))
    assert error.data["retry_after_s"] == 0


@pytest.mark.parametrize(("status", "kind"), [(500, RemoteFailed), (502, RemoteFailed)])
def test_a_server_that_failed(status, kind) -> None:
    assert isinstance(refusal(status, {"message": "CUDA error"}), kind)
    assert isinstance(failing(Reply((), status, "text/plain")), kind)


def test_a_gateway_that_gave_up() -> None:
    assert isinstance(refusal(504, {"message": "upstream"}), RemoteTimeout)


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        ({"message": "top_k is wrong", "param": "top_k"}, InvalidParameter, "top_k"),
        ({"message": "top_logprobs: 1", "param": "top_logprobs"}, InvalidParameter, "logprobs"),
        ({"message": "no", "param": None}, InvalidParameter, ""),
        (
            {"message": "no", "param": "tools", "code": "unsupported_parameter"},
            UnsupportedParameter,
            "tools",
        ),
    ],
)
def test_a_parameter_that_is_refused_has_our_name(error, kind, param) -> None:
    found = refusal(400, error)
    assert type(found) is kind and found.param == param and found.http_status == 400
    assert found.message == error["message"].replace("top_logprobs", "logprobs")
    assert "cluster" in found.hint


@pytest.mark.parametrize(
    "error",
    [
        {"message": "5000 tokens and 4096", "code": "context_length_exceeded"},
        {"message": "too long", "type": "exceed_context_size_error", "code": 400},
        {"message": "This model's maximum context length is 4096 tokens. However, you ...."},
    ],
)
def test_a_prompt_that_is_too_long(error) -> None:
    assert isinstance(refusal(400, error), PromptTooLong)


def test_fastapi_says_what_it_refuses_in_its_own_way() -> None:
    error = failing(answer({"detail": [{"loc": ["body", "n"], "msg": "no"}]}, 422))
    assert isinstance(error, InvalidParameter) and '"n"' in error.message


@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_web_page_in_the_place_of_an_answer(status) -> None:
    error = failing(Reply((b"<!DOCTYPE html><h1>It works",), status, "text/html"))
    assert isinstance(error, RemoteMalformed)
    assert "web page" in error.message and "/v1" in error.hint


def test_no_redirect_takes_the_key_elsewhere(monkeypatch) -> None:
    monkeypatch.setenv("CLUSTER_KEY", KEY)
    with serving(HELLO) as other:
        moved = Reply(status=307, headers=(("Location", other.url + "/chat/completions"),))
        error = failing(moved, key_env="CLUSTER_KEY")
        assert isinstance(error, RemoteMalformed) and "redirects" in error.message
        assert other.connections == 0


@pytest.mark.parametrize(
    "event",
    [
        b"data: {nonsense\n\n",
        b"data: 42\n\n",
        b"data: []\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        data({"choices": 3}),
        data({"choices": [3]}),
        data({"choices": [{"index": 5, "delta": {}}]}),
        data({"choices": [{"delta": 3}]}),
        data({"choices": [{"delta": {"tool_calls": 3}}]}),
        data({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}),
        data({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {}}]}}]}),
    ],
    ids=range(11),
)
def test_what_is_no_chunk_is_said(event) -> None:
    assert isinstance(failing(Reply((HI, event, delta(reason="stop"), DONE))), RemoteMalformed)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_event_without_an_end_is_not_kept_in_memory(monkeypatch, end) -> None:
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 1000)
    lines = tuple(b"data: " + b"x" * 100 + end for _ in range(100))
    assert isinstance(failing(Reply(lines)), RemoteMalformed)


def test_an_answer_that_is_not_streamed_is_said() -> None:
    error = failing(answer({"choices": [{"message": {"content": "Hi"}}]}))
    assert isinstance(error, RemoteMalformed) and "stream" in error.message
    error = failing(answer({"error": {"message": "no", "code": 400}}))
    assert isinstance(error, InvalidParameter)


def test_a_compressed_answer_is_not_unpacked() -> None:
    reply = Reply((b"\x1f\x8b",), headers=(("Content-Encoding", "gzip"),))
    assert isinstance(failing(reply), RemoteMalformed)


def test_after_a_failure_the_server_is_asked_anew_what_it_has() -> None:
    with serving({CHAT: [Reply((HI,), how="cut"), HELLO]}) as fake:

        async def twice(backend):
            return [[e async for e in backend.generate(ASK)][-1] for _ in range(2)]

        first, second = using(remote(fake.url), twice)
        assert isinstance(first, Failed) and second.reason == "stop"
        assert fake.listings == 2


def test_errors_have_codes_of_their_own(nobody) -> None:
    assert json.loads(json.dumps(error_of(remote(nobody), ASK).data)) == {"remote": "cluster"}
