"""Encoders in GGUF files embed and rank over HTTP, with the figures of llama.cpp itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hearth.backends.llamacpp.lib import load_library
from hearth.backends.llamacpp.load import open_model
from served import Served, served
from tiny_rerankers import tiny_bert, tiny_jina_reranker

TEXTS = ["a fox", "where is the den of the fox?", "it sleeps.", "a fox"]
QUERY = "where is the fox?"
LONG = "a " * 600
GENERATING = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}),
    ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
    ("/api/generate", {"prompt": "a"}),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    models = {"bge": folder / "bge.gguf", "jina": folder / "jina.gguf"}
    tiny_bert(models["bge"], positions=512, word_pieces=True)
    tiny_jina_reranker(models["jina"])
    return models


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Served]:
    with served(models=models) as one:
        yield one


def ask(server: Served, path: str, model: str, **body: Any) -> Any:
    reply = server.http.post(path, json={"model": model, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(server: Served, path: str, model: str, **body: Any) -> tuple[str, str]:
    """Message and parameter of a 400."""
    reply = server.http.post(path, json={"model": model, **body})
    assert reply.status_code == 400, reply.text
    error = reply.json() if path.startswith("/api/") else reply.json()["error"]
    return error["error"] if path.startswith("/api/") else error["message"], error["param"]


def of_llama_cpp(path: Path, texts: Sequence[Sequence[str]], width: int) -> NDArray[np.float64]:
    """[len(texts), width]: what llama.cpp's bare C interface pools of each text, whose parts stand
    between [CLS] and [SEP]s.
    """
    api = load_library().api
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    vocab = api.llama_model_get_vocab(model)
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.embeddings = True
    params.n_threads = params.n_threads_batch = 1
    context = api.llama_init_from_model(model, params)
    rows = []
    for parts in texts:
        ids = [api.llama_vocab_bos(vocab)]
        for part in parts:
            buffer = (ctypes.c_int32 * 512)()
            data = part.encode()
            count = api.llama_tokenize(vocab, data, len(data), buffer, 512, False, False)
            ids += [*buffer[:count], api.llama_vocab_sep(vocab)]
        array = (ctypes.c_int32 * len(ids))(*ids)
        assert api.llama_encode(context, api.llama_batch_get_one(array, len(ids))) == 0
        pointer = api.llama_get_embeddings_seq(context, 0)
        rows.append(np.ctypeslib.as_array(pointer, (width,)).astype(np.float64))
    api.llama_free(context)
    api.llama_model_free(model)
    return np.array(rows)


def test_vectors_are_those_of_llama_cpp(server: Served, models: dict[str, Path]) -> None:
    raw = of_llama_cpp(models["bge"], [[text] for text in TEXTS], 64)
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    found = ask(server, "/v1/embeddings", "bge", input=TEXTS)
    vectors = np.array([one["embedding"] for one in found["data"]])
    np.testing.assert_allclose(vectors, expected, atol=1e-3)
    assert (vectors[0] == vectors[3]).all() and not np.allclose(vectors[0], vectors[1])
    ollama = ask(server, "/api/embed", "bge", input=TEXTS)
    assert (np.array(ollama["embeddings"]) == vectors).all()
    assert ollama["prompt_eval_count"] == found["usage"]["prompt_tokens"]


def test_ranks_are_those_of_llama_cpp(server: Served, models: dict[str, Path]) -> None:
    expected = of_llama_cpp(models["jina"], [[QUERY, text] for text in TEXTS], 1)[:, 0]
    found = ask(server, "/v1/rerank", "jina", query=QUERY, documents=TEXTS)
    scores = {one["index"]: one["relevance_score"] for one in found["results"]}
    np.testing.assert_allclose([scores[i] for i in range(4)], expected, atol=1e-3)
    assert list(scores) == sorted(scores, key=lambda index: -scores[index])
    assert len({round(score, 4) for score in scores.values()}) == 3


def test_figures_are_those_of_the_runner_in_this_process(server: Served) -> None:
    loaded = open_model(server.spec("bge"))
    ids = [loaded.tokenizer.encode(t, special=False, add_bos=True, add_eos=True) for t in TEXTS]
    expected = loaded.runner.embed(ids, "model")
    loaded.runner.close()
    found = ask(server, "/v1/embeddings", "bge", input=TEXTS)["data"]
    np.testing.assert_allclose([one["embedding"] for one in found], expected, atol=1e-6)
    loaded = open_model(server.spec("jina"))
    ranks = loaded.runner.rank([loaded.tokenizer.encode_pair(QUERY, text) for text in TEXTS])
    loaded.runner.close()
    found = ask(server, "/v1/rerank", "jina", query=QUERY, documents=TEXTS)["results"]
    scores = {one["index"]: one["relevance_score"] for one in found}
    np.testing.assert_allclose([scores[i] for i in range(4)], ranks, atol=1e-6)


@pytest.mark.parametrize(("path", "body"), GENERATING, ids=lambda value: value)
def test_generating_is_refused_and_says_what_works(
    server: Served, path: str, body: dict[str, Any]
) -> None:
    message, param = refused(server, path, "bge", **body)
    assert "encoder" in message and "/v1/embeddings" in message and param == "model"
    message, _ = refused(server, path, "jina", **body)
    assert "/v1/rerank" in message


def test_a_text_that_is_too_long_is_named_as_the_client_knows_it(server: Served) -> None:
    for given, name in (([TEXTS[0], LONG], "input[1]"), (LONG, "input"), ([[5] * 513], "input[0]")):
        message, param = refused(server, "/v1/embeddings", "bge", input=given)
        assert param == name and message.startswith(f"{name} is too long")
        assert "maximum context length is 512 tokens" in message
    given = ["a", LONG]
    assert refused(server, "/api/embed", "bge", input=given, truncate=False)[1] == "input[1]"
    assert len(ask(server, "/api/embed", "bge", input=given)["embeddings"]) == 2
    message, param = refused(server, "/v1/rerank", "jina", query=QUERY, documents=["a", LONG])
    assert param == "documents[1]" and "Split the text." in message


def test_what_each_can_do(server: Served) -> None:
    ask(server, "/v1/embeddings", "bge", input="a")
    ask(server, "/v1/rerank", "jina", query="a", documents=["a"])
    listed = {one["id"]: one["hearth"] for one in server.http.get("/v1/models").json()["data"]}
    assert listed["bge"]["capabilities"] == ["embed"] and listed["bge"]["context"] == 512
    assert listed["jina"]["capabilities"] == ["rank"]
    assert ask(server, "/api/show", "bge")["capabilities"] == ["embedding"]
    assert refused(server, "/v1/embeddings", "jina", input="a")[1] == "model"
    assert refused(server, "/v1/rerank", "bge", query="a", documents=["b"])[1] == "model"
