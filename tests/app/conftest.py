"""A library folder with small models, for the tests of the front end's ground."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_builder import tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
