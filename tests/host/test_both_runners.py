"""What both runners say of the same GGUF: its makers' advice, its templates, its special tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_templates import CHATML, HERMES
from gguf_builder import tiny_llama
from hearth.backends.contract.models import BackendName, ModelSettings, ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.text.vocab.gguf_vocabulary import end_tokens
from hearth.backends.worker.runners import open_model
from hearth.quant.gguf.reader import read_header

RUNNERS: tuple[BackendName, ...] = ("llamacpp", "native")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    extra = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "tokenizer.chat_template.tool_use": HERMES,
        "tokenizer.ggml.padding_token_id": 266,
        "tokenizer.ggml.unknown_token_id": 267,
        "tokenizer.ggml.mask_token_id": 100_000,
    }
    folder = tmp_path_factory.mktemp("model")
    return tiny_llama(folder / "wise.gguf", template=CHATML, extra=extra)


@pytest.fixture(params=RUNNERS)
def loaded(request: pytest.FixtureRequest, gguf: Path, tmp_path: Path) -> Iterator[Loaded]:
    spec = ModelSpec(str(gguf), backend=request.param, settings=ModelSettings(threads=1))
    found = open_model(spec, tmp_path)
    yield found
    found.runner.close()


def test_the_sampling_that_its_makers_recommend_is_told(loaded: Loaded) -> None:
    assert loaded.info.notices[-1] == "The model's makers recommend temperature 0.5, top_k 20."


def test_its_templates_are_known_by_name(loaded: Loaded) -> None:
    assert loaded.templates == {"default": CHATML, "tool_use": HERMES}
    assert {"chat", "tools"} <= set(loaded.info.capabilities)


def test_its_special_tokens_are_known_by_name(loaded: Loaded, gguf: Path) -> None:
    assert loaded.tokenizer.named_tokens == {"pad_token": "<|system|>", "unk_token": "<|user|>"}
    assert set(end_tokens(read_header(gguf))) == loaded.runner.info.end_ids
