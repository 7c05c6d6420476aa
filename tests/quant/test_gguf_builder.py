"""llama.cpp also accepts the tiny models that other tests depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguf_builder
from hearth.quant.gguf.preflight import check

VARIANTS: list[dict[str, Any]] = [
    {},
    {"dtype": "f16", "vocab": 300, "template": None},
    {"dtype": "bf16", "layers": 1},
    {"hidden": 256, "layers": 1, "quant": "Q8_0"},
    {"hidden": 256, "layers": 1, "quant": "Q4_0"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_loads_tokenizes_and_predicts_in_llama_cpp(options: dict[str, Any], tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path = gguf_builder.tiny_llama(tmp_path / "tiny.gguf", **options)
    checked = check(path)
    model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False)
    try:
        words = gguf_builder.tiny_vocabulary(options.get("vocab"))
        assert model.n_vocab() == len(words.tokens)
        ids = model.tokenize(b"<|user|>hello", add_bos=True, special=True)
        assert ids == [words.id_of("<|user|>"), words.id_of("hello")]
        assert model.detokenize(model.tokenize("é \n".encode(), add_bos=False)) == "é \n".encode()
        assert model.token_eos() == words.id_of("<|end|>")
        assert len(model.create_completion("hi", max_tokens=3, temperature=0)["choices"]) == 1
        assert llama_cpp.llama_model_n_params(model.model) == checked.parameter_count
    finally:
        model.close()


def test_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first = gguf_builder.tiny_llama(tmp_path / "a.gguf", seed=3)
    second = gguf_builder.tiny_llama(tmp_path / "b.gguf", seed=3)
    other = gguf_builder.tiny_llama(tmp_path / "c.gguf", seed=4)
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()


def test_vocabulary_cannot_lose_its_base_tokens() -> None:
    with pytest.raises(ValueError, match="at least 270"):
        gguf_builder.tiny_vocabulary(100)
