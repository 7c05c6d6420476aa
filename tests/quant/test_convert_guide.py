"""The bundled model, converted to a folder of safetensors and back."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from converting import converted
from gguf_folder import write_folder
from quantizing import GUIDE

# Not stored again: the end-of-text token also ends a message.
_SAID_TWICE = "tokenizer.ggml.eot_token_id"


def test_guide_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = write_folder(GUIDE, tmp_path / "guide", "f16")
    ours = gguf.GGUFReader(converted(folder, tmp_path / "guide.gguf"))
    theirs = gguf.GGUFReader(GUIDE)
    for key, field in theirs.fields.items():
        if key.startswith(("tokenizer.", "llama.")) and key != _SAID_TWICE:
            found = ours.fields[key].contents()
            assert found == field.contents() or found == pytest.approx(field.contents()), key
    assert {tensor.name for tensor in ours.tensors} == {tensor.name for tensor in theirs.tensors}
    stored = {tensor.name: tensor for tensor in ours.tensors}
    for tensor in theirs.tensors:
        found = stored[tensor.name]
        assert found.tensor_type == tensor.tensor_type, tensor.name
        assert found.data.tobytes() == tensor.data.tobytes(), tensor.name
