"""Embeddings: pooling works as its name says, however texts are batched and sliced."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_builder import tiny_llama
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Interrupted
from hearth.backends.errors import (
    DoesNotFit,
    InternalError,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
)
from hearth.backends.llamacpp import embedder
from hearth.backends.llamacpp.embedder import Embedder, Vectors
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.params import FLASH_DEPTH
from random_models import write_model
from raw_loop import token_vectors
from tiny_rerankers import WIDTH, tiny_bert

Make = Callable[..., Embedder]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "causal.gguf", context=2048, vocab=320)


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose tokens also attend to later tokens, as in some embedding models."""
    path = tmp_path_factory.mktemp("models") / "both.gguf"
    return tiny_llama(path, context=1024, vocab=320, extra={"llama.attention.causal": False})


def texts_of(*lengths: int, vocab: int = 270) -> list[list[int]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def test_pooling_is_what_its_name_says(make: Make, causal: Path) -> None:
    made = make(causal)
    assert made.width == WIDTH
    texts = texts_of(5, 1, 40, 17)
    raw = [token_vectors(causal, text, WIDTH) for text in texts]
    expected: dict[Pooling, list[NDArray[np.float64]]] = {
        "mean": [vectors.mean(axis=0) for vectors in raw],
        "last": [vectors[-1] for vectors in raw],
        "cls": [vectors[0] for vectors in raw],
    }
    for pooling, vectors in expected.items():
        found = made.embed(texts, pooling)
        assert found.shape == (4, WIDTH) and found.dtype == np.float32
        np.testing.assert_allclose(found, [unit(v) for v in vectors], atol=1e-5)


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-hybrid", "tiny-swa"])
def test_many_at_once_are_the_same_as_one_by_one(make: Make, shape: str, tmp_path: Path) -> None:
    made = make(write_model(shape, "f32", tmp_path / "model.gguf"))
    texts = texts_of(*range(1, 41))
    for pooling in ("mean", "last"):
        together = made.embed(texts, pooling)
        alone = np.concatenate([made.embed([text], pooling) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
        assert len(np.unique(together.round(4), axis=0)) == len(texts)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_text_longer_than_a_batch_is_pooled_as_a_whole(
    make: Make, causal: Path, pooling: Pooling
) -> None:
    texts = texts_of(700, 3, 2048, 3)
    small = make(causal, max_batch_tokens=67, max_sessions=1).embed(texts, pooling)
    raw = token_vectors(causal, texts[2], WIDTH)
    whole = {"mean": raw.mean(axis=0), "last": raw[-1], "cls": raw[0]}[pooling]
    np.testing.assert_allclose(small[2], unit(whole), atol=1e-5)
    large = make(causal, max_batch_tokens=2048).embed(texts, pooling)
    np.testing.assert_allclose(small, large, atol=1e-5)


def test_the_files_own_pooling_is_the_default_and_mean_where_it_has_none(
    make: Make, causal: Path, tmp_path: Path
) -> None:
    texts = texts_of(6, 9)
    assert (make(causal).embed(texts, "model") == make(causal).embed(texts, "mean")).all()
    extra = {"llama.pooling_type": 3}
    last = make(tiny_llama(tmp_path / "last.gguf", context=2048, vocab=320, extra=extra))
    assert (last.embed(texts, "model") == make(causal).embed(texts, "last")).all()
    assert (last.embed(texts, "mean") == make(causal).embed(texts, "mean")).all()


@pytest.mark.parametrize("pooling", ["model", "mean"])
def test_a_reranker_is_refused(make: Make, tmp_path: Path, pooling: Pooling) -> None:
    path = tiny_llama(tmp_path / "rank.gguf", extra={"llama.pooling_type": 4})
    with pytest.raises(UnsupportedParameter, match="reranker"):
        make(path).embed(texts_of(3), pooling)


def test_a_pooling_that_is_not_known_is_refused_but_another_can_be_chosen(
    make: Make, tmp_path: Path
) -> None:
    made = make(tiny_llama(tmp_path / "odd.gguf", extra={"llama.pooling_type": 9}))
    with pytest.raises(UnsupportedParameter, match="pooling type 9"):
        made.embed(texts_of(3), "model")
    assert made.embed(texts_of(3), "last").shape == (1, WIDTH)


def test_a_text_longer_than_the_context_is_refused_with_both_numbers(
    make: Make, causal: Path
) -> None:
    made = make(causal, context=256)
    with pytest.raises(PromptTooLong) as caught:
        made.embed(texts_of(3, 257), "mean")
    assert caught.value.data == {
        "param": "texts",
        "prompt_tokens": 257,
        "context": 256,
    }
    assert made.embed(texts_of(3, 256), "mean").shape == (2, WIDTH)


def test_attention_that_looks_both_ways_computes_a_text_in_one_piece(
    make: Make, both_ways: Path
) -> None:
    made = make(both_ways, max_batch_tokens=32, max_sessions=1)
    texts = texts_of(5, 900, 20)
    expected = [unit(token_vectors(both_ways, text, WIDTH).mean(axis=0)) for text in texts]
    np.testing.assert_allclose(made.embed(texts, "mean"), expected, atol=1e-5)


def test_one_piece_has_a_limit_of_its_own(
    make: Make, both_ways: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "MAX_WHOLE_TOKENS", 100)
    made = make(both_ways, max_batch_tokens=32)
    assert made.embed(texts_of(100), "mean").shape == (1, WIDTH)
    with pytest.raises(PromptTooLong, match=r"101 tokens > 100.*one piece"):
        made.embed(texts_of(101), "mean")


def test_a_model_without_a_decoder_embeds_up_to_its_trained_positions(
    make: Make, tmp_path: Path
) -> None:
    path = tmp_path / "bert.gguf"
    tiny_bert(path, positions=256)
    made = make(path, max_batch_tokens=32)
    texts = texts_of(4, 256, 9, 1)
    found = made.embed(texts, "model")
    expected = [unit(token_vectors(path, text, WIDTH)[0]) for text in texts]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(PromptTooLong, match="257 tokens > 256"):
        make(path, context=512).embed(texts_of(257), "model")


@pytest.mark.parametrize("text", [[], [320], [-1], [3, 1 << 40]])
def test_texts_that_llama_cpp_cannot_take_never_reach_it(
    make: Make, causal: Path, text: list[int]
) -> None:
    with pytest.raises(InvalidParameter):
        make(causal).embed([[1, 2], text], "mean")


def test_no_texts_give_no_vectors(make: Make, causal: Path) -> None:
    assert make(causal).embed([], "mean").shape == (0, WIDTH)


def test_an_interrupt_ends_it_and_the_next_call_is_as_ever(make: Make, causal: Path) -> None:
    flag = Interrupt()
    plain = make(causal)
    made = Embedder(plain._model, plain._plan, 1, flag)
    texts = texts_of(700, 9)
    expected = made.embed(texts, "mean")
    flag.set(True)
    with pytest.raises(Interrupted):
        made.embed(texts, "mean")
    flag.set(False)
    assert (made.embed(texts, "mean") == expected).all()
    made.close()


def test_on_windows_an_interrupt_is_for_the_c_runtime_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = ctypes.CDLL(None)

    def refuse(name: object) -> None:
        raise TypeError("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(ctypes, "cdll", SimpleNamespace(msvcrt=runtime))
    assert Interrupt()._strlen.value == ctypes.cast(runtime.strlen, ctypes.c_void_p).value


def ready() -> None:
    """Does nothing: no caller waits."""


def in_slices(made: Embedder, text: list[int], pooling: Pooling, sizes: Sequence[int]) -> Vectors:
    """The vector of `text`; the last of `sizes` is repeated."""
    sliced = made.begin(text, pooling, ready)
    sliced.size = lambda tokens, start: tokens
    left = iter(sizes)
    size = 0
    while True:
        size = next(left, size)
        if (found := sliced.compute(size)) is not None:
            sliced.close()
            return found


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-hybrid", "tiny-swa"])
def test_a_text_in_slices_has_the_vector_that_it_has_at_once(
    make: Make, shape: str, pooling: Pooling, tmp_path: Path
) -> None:
    made = make(write_model(shape, "f32", tmp_path / "model.gguf"))
    [text] = texts_of(120)
    expected = made.embed([text], pooling)
    for sizes in [(50,), (1, 64, 7, 30), (120,)]:
        np.testing.assert_allclose(in_slices(made, text, pooling, sizes), expected, atol=1e-4)


def test_other_texts_can_be_embedded_between_two_slices(make: Make, causal: Path) -> None:
    made = make(causal, max_batch_tokens=64, max_sessions=1)
    long, *short = texts_of(2048, 40, 200)
    expected, others = made.embed([long], "mean"), made.embed(short, "last")
    sliced = made.begin(long, "mean", ready)
    for _ in range(2048 // 64 - 1):
        assert sliced.compute(64) is None
        assert (made.embed(short, "last") == others).all()
    found = sliced.compute(64)
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-6)
    sliced.close()


def test_a_text_in_slices_is_checked_before_anything_is_computed(make: Make, causal: Path) -> None:
    made = make(causal, context=256)
    with pytest.raises(PromptTooLong, match="257 tokens > 256"):
        made.begin(texts_of(257)[0], "mean", ready)
    with pytest.raises(InvalidParameter):
        made.begin([320], "mean", ready)


def test_a_cancelled_slice_ends_and_another_text_can_begin(make: Make, causal: Path) -> None:
    flag = Interrupt()
    plain = make(causal)
    made = Embedder(plain._model, plain._plan, 1, flag)
    [text] = texts_of(700)
    sliced = made.begin(text, "mean", ready)
    assert sliced.compute(100) is None
    flag.set(True)
    with pytest.raises(Interrupted):
        sliced.compute(100)
    flag.set(False)
    sliced.close()
    sliced.close()
    expected = plain.embed([text], "mean")
    np.testing.assert_allclose(in_slices(made, text, "mean", (100,)), expected, atol=1e-5)
    made.close()


def test_a_large_context_is_made_and_freed_in_the_background(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(causal)
    [text] = texts_of(700)
    expected = made.embed([text], "mean")
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    for _ in range(2):
        is_ready = threading.Event()
        sliced = made.begin(text, "mean", is_ready.set)
        assert is_ready.wait(60) and sliced.is_ready
        while (found := sliced.compute(100)) is None:
            made.embed([text[:3]], "mean")
        np.testing.assert_allclose(found, expected, atol=1e-5)
        sliced.close()
        sliced.close()


def concurrent(plain: Embedder, threads: Callable[[bool], int] = lambda alone: 1) -> Embedder:
    made = Embedder(plain._model, plain._plan, 2, bytes_left=lambda: 1e9)
    made.concurrent_threads = threads
    return made


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_slice_of_a_long_text_is_computed_while_others_are_embedded(
    make: Make, causal: Path, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(causal)
    [text] = texts_of(700)
    expected, other = plain.embed([text], pooling), plain.embed([text[:3]], "mean")
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    asked = []
    made = concurrent(plain, lambda alone: asked.append(alone) or 1)
    is_ready = threading.Event()
    sliced = made.begin(text, pooling, is_ready.set)
    embeds = itertools.cycle([True, True, False])
    computed = []
    found = None
    while found is None:
        assert is_ready.wait(60) and sliced.is_ready
        is_ready.clear()
        assert made.slice_threads == 0
        computed.append(sliced.computed)
        found = sliced.compute(1)
        if next(embeds):
            np.testing.assert_allclose(made.embed([text[:3]], "mean"), other, atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    step = embedder.CONCURRENT_TOKENS
    last = step if pooling == "cls" else 700
    assert computed == [*range(0, last, step), last]
    assert asked == ([True, False, False] * 9)[: len(computed) - 1], "whether nothing else is"
    sliced.close()
    made.close()


def test_a_slice_that_is_computed_concurrently_ends_when_its_text_is_closed(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(causal)
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    is_computing, may_end, is_ready = threading.Event(), threading.Event(), threading.Event()
    compute = embedder._PoolingContext.compute

    def slowly(self: Any, rows: Any) -> Vectors:
        is_computing.set()
        assert may_end.wait(60)
        return compute(self, rows)

    monkeypatch.setattr(embedder._PoolingContext, "compute", slowly)
    made = concurrent(plain)
    sliced = made.begin(texts_of(700)[0], "mean", is_ready.set)
    assert is_ready.wait(60)
    assert sliced.compute(100) is None
    assert is_computing.wait(60)
    assert (made.slice_threads, made.is_making_context, sliced.is_ready) == (1, False, False)
    context = sliced.context
    assert context is not None
    sliced.close()
    assert context._handle is not None, "it is in use"
    may_end.set()
    made.close()
    assert context._handle is None
    assert (sliced.computed, made.slice_threads) == (0, 0), "interrupted"


def test_a_text_in_slices_and_one_that_is_computed_concurrently(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(causal, max_batch_tokens=64, max_sessions=1)
    long, quick = texts_of(700, 200)
    expected = plain.embed([long, quick], "mean")
    kv_bytes = plain._plan.kv_bytes_per_token
    monkeypatch.setattr(embedder, "QUICK_BYTES", 300 * kv_bytes)
    made = concurrent(plain)
    assert made.quick_tokens == 256
    is_ready = threading.Event()
    found: list[Vectors | None] = [None, None]
    texts = [made.begin(long, "mean", is_ready.set), made.begin(quick, "mean", ready)]
    assert [text.is_concurrent for text in texts] == [True, False]
    assert is_ready.wait(60)
    while any(one is None for one in found):
        for at, text in enumerate(texts):
            if found[at] is None and text.is_ready:
                found[at] = text.compute(64)
    assert made.nbytes >= 900 * kv_bytes
    for at, text in enumerate(texts):
        np.testing.assert_allclose(found[at][0], expected[at], atol=1e-5)
        text.close()
    made.close()


def test_without_a_thread_a_long_text_is_computed_by_the_caller(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(causal)
    [text] = texts_of(700)
    expected = plain.embed([text], "mean")
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    made = concurrent(plain)
    sliced = made.begin(text, "mean", ready)
    while (found := sliced.compute(1)) is None:
        assert sliced.is_ready and made.slice_threads == 0
    np.testing.assert_allclose(found, expected, atol=1e-5)
    context = sliced.context
    assert context is not None
    sliced.close()
    made.close()
    assert context._handle is None


def test_an_error_of_a_concurrent_slice_is_that_of_its_text(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(causal)
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    made = concurrent(plain)
    is_ready = threading.Event()
    sliced = made.begin(texts_of(700)[0], "mean", is_ready.set)
    assert is_ready.wait(60)
    is_ready.clear()

    def fail(self: Any, rows: Any) -> Vectors:
        raise InternalError("llama.cpp could not embed")

    monkeypatch.setattr(embedder._PoolingContext, "compute", fail)
    assert sliced.compute(100) is None
    assert is_ready.wait(60)
    with pytest.raises(InternalError, match="could not embed"):
        sliced.compute(100)
    sliced.close()
    made.close()


def test_texts_may_be_closed_before_they_are_ready(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(causal)
    contexts = []

    class Counted(embedder._PoolingContext):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            contexts.append(self)

    monkeypatch.setattr(embedder, "_PoolingContext", Counted)
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    [text] = texts_of(700)
    for _ in range(3):
        made.begin(text, "mean", ready).close()
    left_open = made.begin(text, "mean", ready)
    made.close()
    assert len(contexts) == 4
    assert all(context._handle is None for context in contexts)
    with pytest.raises(InternalError, match="closed"):
        left_open.compute(10)


def test_without_memory_for_a_large_context_its_text_fails(
    make: Make, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(causal)
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)
    monkeypatch.setattr(embedder, "available_bytes", lambda: 1000)
    is_ready = threading.Event()
    sliced = made.begin(texts_of(700)[0], "mean", is_ready.set)
    assert is_ready.wait(60) and sliced.is_ready
    with pytest.raises(DoesNotFit):
        sliced.compute(10)
    sliced.close()


@pytest.mark.parametrize(
    ("flash", "sizes"),
    [
        (False, {1: 16, 23: 16, 24: 32, 100: 96, 200: 128}),
        (True, {1: 16, 47: 48, 48: 64, 100: 64, 112: 128, 1000: 512}),
    ],
)
def test_slices_are_whole_tiles_and_no_more_than_is_left(
    make: Make, causal: Path, flash: bool, sizes: dict[int, int]
) -> None:
    plain = make(causal)
    made = Embedder(plain._model, replace(plain._plan, flash_attention=flash, ubatch=512), 1)
    if not flash:
        made = plain
    sliced = made.begin(texts_of(600)[0], "mean", ready)
    assert {tokens: made.slice_size(tokens, 0) for tokens in sizes} == sizes
    assert made.slice_size(1, FLASH_DEPTH) == (64 if flash else 16), "cheaper than 16 are there"
    for number in range(1, 5):
        assert sliced.compute(128) is None and sliced.computed == 128 * number
    assert sliced.compute(1000) is not None and sliced.computed == 600
    sliced.close()
    made.close()


def test_a_closed_text_computes_nothing(make: Make, causal: Path) -> None:
    sliced = make(causal).begin(texts_of(100)[0], "mean", ready)
    sliced.close()
    with pytest.raises(InternalError, match="closed"):
        sliced.compute(10)


def test_it_works_again_after_it_was_closed(make: Make, causal: Path) -> None:
    made = make(causal)
    first = made.embed(texts_of(7), "mean")
    made.close()
    made.close()
    assert (made.embed(texts_of(7), "mean") == first).all()
