"""`GET /tokenizer_info`: special tokens and the chat template."""

from __future__ import annotations

import shutil

URL = "/tokenizer_info"


def test_the_bundled_model(endpoint) -> None:
    found = endpoint().get(f"{URL}?model=guide").json
    assert (found["model"], found["eos_token"]) == ("guide", "<|end|>")
    assert (found["pad_token"], found["unk_token"]) == ("<|pad|>", None)
    assert "<|assistant|>" in found["chat_template"]


def test_a_model_deleted_since_the_library_was_listed(endpoint, tmp_path, tiny_model) -> None:
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "gone.gguf"
    shutil.copy(tiny_model, path)
    made = endpoint()
    assert made.get(f"{URL}?model=gone").status == 200
    path.unlink()
    reply = made.get(f"{URL}?model=gone")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
