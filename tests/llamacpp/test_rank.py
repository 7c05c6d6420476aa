"""Ranks: the score of the head for a text's vector, however texts are batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_builder import tiny_llama
from hearth.backends.errors import InvalidParameter, PromptTooLong, UnsupportedParameter
from hearth.backends.llamacpp.embedder import Embedder, names_rank
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.llamacpp.model import LlamaModel
from raw_loop import token_vectors
from tiny_rerankers import WIDTH, tiny_bert, tiny_qwen3_reranker

Make = Callable[..., Embedder]
Load = Callable[..., Loaded]


def texts_of(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(0, 270, length).tolist() for length in lengths]


def vector_of(path: Path, tokens: Sequence[int], at: int) -> NDArray[np.float64]:
    """[WIDTH]: the output of the model for the token at `at`, by llama.cpp's bare C interface."""
    return token_vectors(path, tokens, WIDTH)[at]


def test_an_encoder_ranks_by_the_head_over_its_first_token(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    head = tiny_bert(path, positions=256, pooling=gguf.PoolingType.RANK, head=1)
    texts = texts_of(5, 1, 60, 17)
    hidden = [vector_of(path, text, 0) for text in texts]
    pooled = [np.tanh(head["cls.weight"] @ vector + head["cls.bias"]) for vector in hidden]
    weight, bias = head["cls.output.weight"][0], head["cls.output.bias"][0]
    found = make(path).rank(texts)
    assert found.shape == (4,) and found.dtype == np.float32
    np.testing.assert_allclose(found, [weight @ vector + bias for vector in pooled], atol=1e-4)
    assert len(set(found.tolist())) == 4


@pytest.mark.parametrize("batch", [16, 512])
def test_a_decoder_ranks_by_the_probability_of_yes(make: Make, tmp_path: Path, batch: int) -> None:
    path = tmp_path / "qwen3.gguf"
    head = tiny_qwen3_reranker(path)
    texts = texts_of(5, 40, 1, 17, 200)
    logits = [head["cls.output.weight"] @ vector_of(path, text, -1) for text in texts]
    expected = [1 / (1 + np.exp(no - yes)) for yes, no in logits]
    made = make(path, max_batch_tokens=batch)
    found = made.rank(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    sliced = made.begin(texts[-1], None, lambda: None)
    while (last := sliced.compute(13)) is None:
        pass
    np.testing.assert_allclose(last, expected[-1:], atol=1e-5)
    assert (found > 0).all() and (found < 1).all()


def test_ranks_do_not_depend_on_the_order_or_on_the_others(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    tiny_bert(path, positions=256, pooling=gguf.PoolingType.RANK, head=1)
    made = make(path, max_batch_tokens=64)
    texts = texts_of(*range(1, 41))
    together = made.rank(texts)
    np.testing.assert_allclose(made.rank(texts[::-1])[::-1], together, atol=1e-5)
    np.testing.assert_allclose([made.rank([text])[0] for text in texts], together, atol=1e-5)
    assert (made.rank(texts) == together).all()
    assert made.rank([]).shape == (0,)


def test_texts_that_cannot_be_ranked_are_refused_with_numbers(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    tiny_bert(path, positions=128, pooling=gguf.PoolingType.RANK, head=1)
    made = make(path)
    with pytest.raises(PromptTooLong, match="129 tokens > 128"):
        made.rank(texts_of(129))
    with pytest.raises(InvalidParameter):
        made.rank([[]])
    with pytest.raises(InvalidParameter):
        made.rank([[270]])


def test_a_runner_says_whether_it_ranks(load: Load, f32_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "qwen3.gguf"
    tiny_qwen3_reranker(path)
    runner = load(path).runner
    assert runner.info.can_rank and runner.info.embedding_width == 0
    ranks = runner.rank(texts_of(4, 9))
    assert ranks.shape == (2,) and (ranks == runner.rank(texts_of(4, 9))).all()
    with pytest.raises(UnsupportedParameter, match="reranker"):
        runner.embed(texts_of(4), "model")
    other = load(f32_model).runner
    assert not other.info.can_rank and other.info.embedding_width == WIDTH
    with pytest.raises(UnsupportedParameter, match="not trained to rank"):
        other.rank(texts_of(4))


def test_what_has_no_head_or_sorts_into_classes_does_not_rank(load: Load, tmp_path: Path) -> None:
    headless, classes = tmp_path / "headless.gguf", tmp_path / "classes.gguf"
    tiny_qwen3_reranker(headless, head=False)
    tiny_qwen3_reranker(classes, labels=("joy", "anger", "fear"))
    assert not load(headless).runner.info.can_rank
    assert not load(classes).runner.info.can_rank
    with closing(LlamaModel.open(tiny_llama(tmp_path / "llama.gguf"))) as model:
        assert not names_rank(model)
