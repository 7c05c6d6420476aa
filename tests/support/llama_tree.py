"""Test data from the source package of llama.cpp's bindings: vocabularies, vectors, chat templates.
It is located when tests are collected, before they get their own home.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import vocabularies
from hearth.backends.llamacpp.lib import load_library, set_fields
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer

_SEPARATOR = "\n__ggml_vocab_test__\n"
MISSING = (
    "llama.cpp's vocabularies are not here: run `make vocabularies`, or name a folder "
    f"of its sources in {vocabularies.TREE_VARIABLE}"
)


@dataclass(frozen=True)
class Vector:
    """A text and the ids that llama.cpp's authors expect."""

    text: str
    ids: list[int]


def files(pattern: str) -> list[Any]:
    """Test parameters for the files that match, or one that skips with the reason."""
    tree = vocabularies.found_tree()
    found = sorted(tree.glob(pattern)) if tree is not None else []
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=MISSING))]
    return [pytest.param(path, id=path.name.removeprefix("ggml-vocab-")) for path in found]


def vectors(vocabulary: Path) -> list[Vector]:
    """The vectors next to a vocabulary; empty if there are none."""
    texts, ids = (vocabulary.with_name(vocabulary.name + end) for end in (".inp", ".out"))
    if not texts.is_file():
        return []
    inputs = texts.read_bytes().decode().split(_SEPARATOR)
    outputs = ids.read_text(encoding="utf-8").split("\n")
    return [
        Vector(text, [int(number) for number in line.split()])
        for text, line in zip(inputs, outputs, strict=False)
    ]


@contextmanager
def llama_tokenizer(path: Path) -> Iterator[LlamaTokenizer]:
    """llama.cpp's tokenizer of a file, which does not need weights."""
    library = load_library()
    params = library.api.llama_model_default_params()
    set_fields(params, vocab_only=True)
    handle = library.api.llama_model_load_from_file(str(path).encode(), params)
    assert handle, library.log.said()
    model = LlamaModel(library, handle, path)
    try:
        yield LlamaTokenizer(model)
    finally:
        model.close()
