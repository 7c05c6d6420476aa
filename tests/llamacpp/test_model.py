"""Loading: models that cannot run are refused with a typed error, and the process survives."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import CorruptFile, ModelNotFound, UnsupportedModel
from hearth.backends.llamacpp import footprint
from hearth.backends.llamacpp.lib import LibraryLog, load_library
from hearth.backends.llamacpp.load import open_model
from hearth.backends.llamacpp.model import LlamaModel


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_model(ModelSpec(str(tmp_path / "none.gguf")))


def test_llama_cpp_says_why_it_rejects_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    with pytest.raises(CorruptFile, match=r"cut\.gguf"):
        LlamaModel.open(path)


def test_an_unknown_architecture_is_unsupported(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "new.gguf")
    data = path.read_bytes()
    assert data.count(b"general.architecture") == 1
    at = data.index(b"llama", data.index(b"general.architecture"))
    path.write_bytes(data[:at] + b"zzzzz" + data[at + 5 :])
    with pytest.raises(UnsupportedModel, match="zzzzz"):
        LlamaModel.open(path)


def test_facts_come_from_the_model(f32_model: Path) -> None:
    with closing(LlamaModel.open(f32_model)) as model:
        assert model.facts.vocab_size == 320
        assert model.facts.trained_context == 512
        assert model.facts.layers == 2
        assert model.facts.end_ids == {269}
        assert model.metadata("general.name") == "tiny"
        assert model.metadata("no.such.key") is None
    model.close()


def test_the_shape_has_the_widest_layer(tmp_path: Path) -> None:
    widths = {"llama.feed_forward_length": [128, 128]}
    with closing(LlamaModel.open(tiny_llama(tmp_path / "by-layer.gguf", extra=widths))) as model:
        assert model.shape.feed_forward == 128


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    loaded = open_model(ModelSpec(str(tiny_llama(tmp_path / "base.gguf", template=None))))
    assert loaded.templates == {}
    assert not loaded.info.has_chat_template and loaded.info.template_sha256 == ""
    loaded.runner.close()


@pytest.mark.parametrize(
    ("template", "extra", "expected"),
    [
        (None, {}, ("embed",)),
        ("{{ messages[0].content }}", {}, ("chat", "embed")),
        (
            "{{ messages[0].content }}{{ tools }}{{ enable_thinking }}",
            {f"tokenizer.ggml.fim_{name}_token_id": 260 for name in ("pre", "suf", "mid")},
            ("chat", "tools", "thinking", "infill", "embed"),
        ),
    ],
)
def test_what_a_model_can_do(
    tmp_path: Path,
    template: str | None,
    extra: dict[str, int | float | bool | str],
    expected: tuple[str, ...],
) -> None:
    path = tiny_llama(tmp_path / "able.gguf", template=template, extra=extra)
    settings = ModelSettings(max_sessions=3, max_batch_tokens=100)
    loaded = open_model(ModelSpec(str(path), settings=settings))
    assert loaded.info.capabilities == expected
    assert (loaded.info.max_sessions, loaded.info.max_batch_tokens) == (3, 100)
    loaded.runner.close()


def test_the_library_names_itself() -> None:
    library = load_library()
    assert library is load_library()
    assert library.version.startswith("llama-cpp-python ")
    assert library.max_sequences >= 64


def test_log_lines_are_joined_and_the_worst_are_said() -> None:
    log = LibraryLog()
    log.write(2, "loading\n")
    assert log.said() == "loading"
    log.write(4, "it ")
    log.write(5, "broke\n")
    log.write(1, "a graph ")
    log.write(5, "of many nodes\n")
    log.write(2, "freeing\n")
    assert log.said() == "it broke"
    log.clear()
    assert log.said() == ""


def test_what_a_cancel_makes_llama_cpp_say_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LibraryLog()
    with caplog.at_level(logging.INFO):
        log.write(4, "llama_decode: failed to decode, ret = 2\n")
        log.write(4, "llama_decode: failed to decode, ret = -3\n")
    assert caplog.messages == ["llama_decode: failed to decode, ret = -3"]


def test_importing_the_room_does_not_import_the_library() -> None:
    code = (
        "import sys, hearth.backends.llamacpp.load, hearth.backends.llamacpp.selftest;"
        "sys.exit('llama_cpp' in sys.modules or 'gguf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_weights_that_fit_easily_are_read_and_others_mapped(
    f32_model: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(f32_model.resolve()))

    before = mapped()
    monkeypatch.setattr(footprint, "READ_SHARE", share)
    loaded = open_model(ModelSpec(str(f32_model)))
    try:
        assert (mapped() > before) == (share == 0.0)
    finally:
        loaded.runner.close()
