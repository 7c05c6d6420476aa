"""`GET /tokenizer_info`: special tokens and the chat template."""

from __future__ import annotations

import shutil

import pytest

URL = "/tokenizer_info"


def test_the_bundled_model(endpoint) -> None:
    found = endpoint().get(f"{URL}?model=guide").json
    assert (found["model"], found["eos_token"]) == ("guide", "<|end|>")
    assert (found["pad_token"], found["unk_token"]) == ("<|pad|>", None)
    assert "<|assistant|>" in found["chat_template"]


@pytest.mark.parametrize("model", ["guide", "tiny"])
def test_the_template_of_the_settings_is_the_one_that_is_used(endpoint, tmp_path, model) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    made = endpoint(flags={"chat_template": str(tmp_path / "own.jinja")})
    assert made.get(f"{URL}?model={model}").json["chat_template"] == "{{ messages }}"


def test_a_model_deleted_since_the_library_was_listed(endpoint, tmp_path, tiny_model) -> None:
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "gone.gguf"
    shutil.copy(tiny_model, path)
    made = endpoint()
    assert made.get(f"{URL}?model=gone").status == 200
    path.unlink()
    reply = made.get(f"{URL}?model=gone")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
