"""FIFOs, sockets and devices named like models are skipped, and never opened for reading; so are
manifests that cannot be read.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.app.library.local import Library
from hearth.app.library.model_files import open_regular
from hearth.app.library.quantized import quantized
from hearth.app.library.sources import Source
from hearth.backends.errors import HearthError, UnsupportedModel

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no such files there"),
    pytest.mark.timeout(60),
]


def a_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path))
    os.close(folder)


def a_link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: tuple[Callable[[Path], None], ...] = (
    os.mkfifo,
    a_socket,
    a_link_to_a_fifo,
    a_link_to_a_device,
)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """A model in the folder, and every kind of store."""
    (tmp_path / "models").mkdir()
    tiny_llama(tmp_path / "models" / "tiny.gguf")
    sources = [
        Source(store, tmp_path / store)
        for store in ("huggingface", "lmstudio", "ollama", "llama.cpp", "folder")
    ]
    return Library(tmp_path / "models", tmp_path / "none", sources=sources)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "place",
    [
        "models/odd.gguf",
        "models/odd-00001-of-00002.gguf",
        "models/folder/model.safetensors",
        "models/folder/config.json",
        f"huggingface/models--o--r/snapshots/{'c' * 40}/odd.gguf",
        "huggingface/models--o--r/refs/main",
        "lmstudio/o/r/odd.gguf",
        "ollama/manifests/registry.ollama.ai/library/odd/latest",
        "llama.cpp/o_r_odd.gguf",
        "folder/odd.gguf",
    ],
)
def test_it_is_no_model(library: Library, place: str, make: Callable[[Path], None]) -> None:
    path = library.folder.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if place.startswith("models/folder"):
        for name in {"config.json", "model.safetensors"} - {path.name}:
            (path.parent / name).write_bytes(b"{}")
    make(path)
    assert [model.name for model in library.list()] == ["tiny"]
    with pytest.raises(HearthError):
        library.resolve(str(path))


def test_an_ollama_model_whose_content_is_none(library: Library) -> None:
    ollama = library.folder.parent / "ollama"
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "odd" / "latest"
    manifest.parent.mkdir(parents=True)
    digest = "a" * 64
    manifest.write_text(
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", '
        f'"digest": "sha256:{digest}"}}]}}'
    )
    (ollama / "blobs").mkdir()
    os.mkfifo(ollama / "blobs" / f"sha256-{digest}")
    assert [model.name for model in library.list()] == ["tiny"]


def test_a_manifest_that_is_nested_too_deep_is_none(library: Library) -> None:
    (library.folder / "tiny.gguf.json").write_text("[" * 100_000)
    assert quantized(library.list()) == {}


def test_the_reason_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "odd.gguf")
    with pytest.raises(UnsupportedModel, match="not a regular file"):
        Library(tmp_path).resolve(str(tmp_path / "odd.gguf"))


def test_a_file_that_became_a_fifo_after_it_was_looked_at(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "odd.gguf")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "odd.gguf")


def test_a_link_that_leads_nowhere_is_still_told(library: Library) -> None:
    (library.folder / "lost.gguf").symlink_to("gone.gguf")
    models = {model.name: model for model in library.list()}
    assert models["lost"].error
