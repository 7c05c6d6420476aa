"""What is asked of a server beside answers: its models, tokens, prompts, vectors, scores, ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_remote import VLLM, answer, remote, serving, using
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request, Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import UnsupportedParameter
from hearth.backends.remote.dialects import DIALECTS
from hearth.backends.remote.errors import RemoteMalformed, RemoteModelMissing
from hearth.backends.remote.models import RemoteModel, describe

LLAMA = {"id": "gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}
HEARTH = {"id": "guide", "owned_by": "bundled", "hearth": {"context": 512, "trained_context": 2048}}
OTHER = {"id": "x", "owned_by": "someone"}
CHAT = Request(messages=(Message("user", "hi"),), sampling=SamplingParams(top_k=0, min_p=0.0))


def ask(work, replies=None, models=(VLLM,), **more):
    """What `work` gives, and the server."""
    with serving(replies or {}, models=models) as fake:
        return using(remote(fake.url, **more), work), fake


@pytest.mark.parametrize(
    ("entry", "kind", "context", "trained"),
    [
        (VLLM, "vllm", 32768, 0),
        (LLAMA, "llama-server", 4096, 8192),
        (HEARTH, "hearth", 512, 2048),
        (OTHER, "other", 0, 0),
    ],
)
def test_what_a_model_is(entry, kind, context, trained) -> None:
    info, fake = ask(lambda backend: backend.info(), models=(entry,))
    assert (info.name, info.path, info.backend) == ("cluster", fake.url, "remote")
    assert (info.architecture, info.backend_version) == (entry["id"], kind)
    assert (info.context, info.trained_context, info.parameters) == (context, trained, 0)
    assert info.has_chat_template and info.notices == ()


def test_an_alias_need_not_be_listed() -> None:
    info, _ = ask(lambda backend: backend.info(), model="alias")
    assert (info.architecture, info.backend_version, info.context) == ("alias", "vllm", 0)


def test_a_server_without_a_list_is_asked_by_name() -> None:
    info, _ = ask(lambda backend: backend.info(), models=None, model="big")
    assert (info.architecture, info.backend_version) == ("big", "other")


def test_a_server_without_models() -> None:
    with pytest.raises(RemoteModelMissing, match="0 models"):
        ask(lambda backend: backend.info(), models=())


def test_settings_of_loading_are_said_to_do_nothing() -> None:
    def spec(settings):
        return ModelSpec("", "cluster", "remote", settings)

    with serving() as fake:
        [notice] = using(
            remote(fake.url), lambda backend: backend.info(), spec(ModelSettings(context=9))
        ).notices
        assert "settings of loading" in notice
        lasting = spec(ModelSettings(keep_alive_s=5))
        assert using(remote(fake.url), lambda backend: backend.info(), lasting).notices == ()


def test_a_key_that_goes_over_the_net_unencrypted_is_said() -> None:
    model = RemoteModel("big", DIALECTS["vllm"])
    far = remote("http://10.0.0.5:8000/v1", key_env="K")
    assert "unencrypted" in describe(far, model, ModelSettings(), 0).notices[0]
    safe = remote("https://10.0.0.5:8000/v1", key_env="K")
    assert describe(safe, model, ModelSettings(), 0).notices == ()


@pytest.mark.parametrize(
    ("entry", "sent"),
    [
        (VLLM, {"model": "big", "prompt": "a", "add_special_tokens": False}),
        (
            LLAMA,
            {"model": "gguf", "content": "a", "parse_special": True, "add_special": False},
        ),
        (HEARTH, {"model": "guide", "content": "a", "parse_special": True}),
    ],
)
def test_tokens_of_a_text(entry, sent) -> None:
    replies = {"/tokenize": answer({"tokens": [1, 2]})}
    ids, fake = ask(lambda backend: backend.tokenize("a", special=True), replies, (entry,))
    assert (ids, fake.asked) == ([1, 2], sent)


@pytest.mark.parametrize("name", ["prompt", "content", "text"])
def test_the_text_of_tokens(name) -> None:
    replies = {"/detokenize": answer({name: "ab"})}
    text, fake = ask(lambda backend: backend.detokenize((1, 2)), replies)
    assert (text, fake.asked) == ("ab", {"model": "big", "tokens": [1, 2]})


@pytest.mark.parametrize("tokens", [None, "ab", [1, "b"], [-1], [True]])
def test_tokens_that_are_none(tokens) -> None:
    with pytest.raises(RemoteMalformed):
        ask(lambda backend: backend.tokenize("a"), {"/tokenize": answer({"tokens": tokens})})


def test_the_prompt_of_a_chat_at_vllm() -> None:
    replies = {
        "/tokenize": answer({"tokens": [1, 2]}),
        "/detokenize": answer({"prompt": "<u>hi"}),
    }
    prompt, fake = ask(lambda backend: backend.render(CHAT), replies)
    assert (prompt.text, prompt.ids) == ("<u>hi", (1, 2))
    assert fake.requests[0][2] == {
        "model": "big",
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_the_prompt_of_a_chat_at_llama_server_and_hearth() -> None:
    replies = {"/tokenize": answer({"tokens": [1]}), "/apply-template": answer({"prompt": "<u>"})}
    for entry in (LLAMA, HEARTH):
        prompt, fake = ask(lambda backend: backend.render(CHAT), replies, (entry,))
        assert (prompt.text, prompt.ids) == ("<u>", (1,))
        if entry is LLAMA:
            assert fake.asked["parse_special"] is True
        else:  # Special tokens typed in a message are text, so the rendered text is not tokenized.
            assert fake.asked["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("entry", "effort"),
    [
        (VLLM, {"chat_template_kwargs": {"reasoning_effort": "low"}}),
        (HEARTH, {"chat_template_kwargs": {"reasoning_effort": "low"}}),
        (LLAMA, {"reasoning_effort": "low"}),
    ],
)
def test_a_prompt_is_that_of_the_answer(entry, effort) -> None:
    """With what it says of thinking, and without tools that no answer may call."""
    replies = {"/tokenize": answer({"tokens": [1]}), "/apply-template": answer({"prompt": "<u>"})}
    replies["/detokenize"] = replies["/apply-template"]
    request = replace(
        CHAT,
        tools=(Tool("add"),),
        tool_choice="none",
        template_values={"reasoning_effort": "low"},
    )
    _, fake = ask(lambda backend: backend.render(request), replies, (entry,))
    messages = [{"role": "user", "content": "hi"}]
    assert fake.requests[0][2] == {"model": entry["id"], "messages": messages, **effort}


def test_the_prompt_of_a_text() -> None:
    replies = {"/tokenize": answer({"tokens": [1, 2]}), "/detokenize": answer({"prompt": "ab"})}
    prompt, fake = ask(lambda backend: backend.render(Request(text="ab")), replies)
    assert (prompt.text, prompt.ids, fake.asked["add_special_tokens"]) == ("ab", (1, 2), True)
    _, fake = ask(lambda backend: backend.render(Request(text="ab")), replies, (HEARTH,))
    assert (fake.asked["parse_special"], fake.asked["add_special"]) == (False, True)
    prompt, _ = ask(lambda backend: backend.render(Request(token_ids=(3,))), replies)
    assert (prompt.text, prompt.ids) == ("ab", (3,))


@pytest.mark.parametrize(
    "work",
    [
        lambda backend: backend.tokenize("a"),
        lambda backend: backend.detokenize((1,)),
        lambda backend: backend.render(CHAT),
        lambda backend: backend.score((1, 2)),
        lambda backend: backend.embed(["a"], pooling="mean"),
    ],
)
def test_what_openais_api_lacks_is_refused(work) -> None:
    with pytest.raises(UnsupportedParameter, match="cluster"):
        ask(work, models=(OTHER,))


def test_vectors_have_length_1_and_stand_in_order() -> None:
    entries = [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}]
    replies = {
        "/v1/embeddings": answer({"data": entries, "usage": {"prompt_tokens": 5}}),
    }
    found, fake = ask(lambda backend: backend.embed(["a", (1, 2)]), replies)
    assert found.vectors == ((0.6, 0.8), (0.0, 1.0)) and found.prompt_tokens == 5
    assert fake.asked["input"] == ["a", [1, 2]]
    uncounted = {"/v1/embeddings": answer({"data": entries})}
    assert ask(lambda backend: backend.embed(["a", "b"]), uncounted)[0].prompt_tokens == 0


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"data": [], "usage": {"prompt_tokens": 1}},
        {"data": [{"index": 0, "embedding": [0, 0]}], "usage": {"prompt_tokens": 1}},
        {"data": [{"index": 0, "embedding": "AAA="}], "usage": {"prompt_tokens": 1}},
    ],
)
def test_vectors_that_are_none(value) -> None:
    with pytest.raises(RemoteMalformed):
        ask(lambda backend: backend.embed(["a"]), {"/v1/embeddings": answer(value)})


def test_ranks_stand_in_the_order_of_the_texts() -> None:
    results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    replies = {"/v1/rerank": answer({"results": results, "usage": {"total_tokens": 8}})}
    found, fake = ask(lambda backend: backend.rank("q", ["a", "b"]), replies)
    assert (found.scores, found.prompt_tokens) == ((0.1, 0.9), 8)
    assert fake.asked == {"model": "big", "query": "q", "documents": ["a", "b"]}
    with pytest.raises(RemoteMalformed):
        ask(lambda backend: backend.rank("q", ["a", "b", "c"]), replies)


def scored(*logprobs):
    values = {
        "tokens": ["a", "b", "c"][: len(logprobs)],
        "token_logprobs": list(logprobs),
        "top_logprobs": [None, {"b": -1.0, "z": -0.5}, {"c": -2.0}][: len(logprobs)],
    }
    return {"/v1/completions": answer({"choices": [{"text": "ab", "logprobs": values}]})}


def test_scores_are_those_of_the_given_tokens_alone() -> None:
    found, fake = ask(lambda backend: backend.score((7, 8), top=1), scored(None, -1.0, -2.0))
    assert found.logprobs == (-1.0,)
    assert [(t.text, [text for _, text, _ in t.top]) for t in found.tokens] == [("b", ["z"])]
    asked = {name: fake.asked[name] for name in ("prompt", "echo", "logprobs", "max_tokens")}
    assert asked == {"prompt": [7, 8], "echo": True, "logprobs": 1, "max_tokens": 1}
    plain, _ = ask(lambda backend: backend.score((7, 8)), scored(None, -1.0))
    assert plain.tokens == ()
    with pytest.raises(RemoteMalformed):
        ask(lambda backend: backend.score((7, 8, 9, 10)), scored(None, -1.0))
