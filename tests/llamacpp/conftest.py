"""Tiny models for the tests in this folder, made once per run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from driven import Driven
from gguf_builder import tiny_llama
from guide_forms import derive
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.llamacpp.embedder import Embedder
from hearth.backends.llamacpp.load import Loaded, open_model
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.quant.gguf import preflight
from random_models import write_model

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def f32_model(models: Path) -> Path:
    """Two layers, float32, 270 tokens, trained context 512."""
    return tiny_llama(models / "f32.gguf", vocab=320)


@pytest.fixture(scope="session")
def long_model(models: Path) -> Path:
    """One layer, float32, trained context 8,192: four sessions outgrow the first pool."""
    return tiny_llama(models / "long.gguf", layers=1, context=8192, seed=3)


@pytest.fixture(scope="session")
def guide_model(models: Path) -> Path:
    """The bundled model in float32."""
    return derive("F32", models)


@pytest.fixture(scope="session")
def hybrid_model(models: Path) -> Path:
    """Two layers of attention and two of short convolutions, float32, trained context 8,192."""
    return write_model("tiny-hybrid", "f32", models / "hybrid.gguf")


@pytest.fixture(scope="session")
def window_model(models: Path) -> Path:
    """Two layers with a window of 32 tokens and two without, float32, trained context 8,192."""
    return write_model("tiny-swa", "f32", models / "window.gguf")


@pytest.fixture(scope="session")
def q8_model(models: Path) -> Path:
    return tiny_llama(models / "q8.gguf", quant="Q8_0")


@pytest.fixture
def load() -> Iterator[Callable[..., Loaded]]:
    """`load(path, **settings)`: an exact-mode model whose runner is driven by hand; closed after
    the test.
    """
    opened: list[Loaded] = []

    def open_exact(path: Path, **changes: object) -> Loaded:
        settings = ModelSettings(
            **{name: getattr(EXACT, name) for name in EXACT.__slots__} | changes
        )
        loaded = open_model(ModelSpec(str(path), settings=settings))
        opened.append(replace(loaded, runner=Driven(loaded.runner)))
        return opened[-1]

    yield open_exact
    for loaded in opened:
        loaded.runner.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Embedder]]:
    """`make(path, **settings)`: an embedder in exact mode, closed with its model after the test."""
    opened: list[tuple[Embedder, LlamaModel]] = []

    def open_exact(path: Path, **changes: object) -> Embedder:
        settings = ModelSettings(kv_type="f32", flash_attention=False, **changes)  # type: ignore[arg-type]
        plan = plan_context(
            settings, preflight.check(path), weight_bytes=0, available_bytes=1 << 34
        )
        model = LlamaModel.open(path)
        opened.append((Embedder(model, plan, threads=1), model))
        return opened[-1][0]

    yield open_exact
    for made, model in opened:
        made.close()
        model.close()
