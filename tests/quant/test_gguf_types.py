"""The type tables agree with those of gguf-py and of ggml itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import pytest

from hearth.quant.gguf.mixes import FILE_TYPE_NAMES
from hearth.quant.gguf.types import TensorType, ValueType

GGUF_PY_DIFFERS = {"Q8_1"}
"""gguf-py counts the two float16 values of a Q8_1 block as float32; ggml stores 36 bytes."""


def test_every_tensor_type_of_gguf_py_has_its_block_size() -> None:
    for kind, (elements, size) in gguf.constants.GGML_QUANT_SIZES.items():
        ours = TensorType[kind.name]
        assert ours == kind
        assert ours.block_elements == elements
        if kind.name not in GGUF_PY_DIFFERS:
            assert ours.block_bytes == size


def test_every_tensor_type_has_the_block_size_of_ggml() -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    libraries = sorted((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))
    if not libraries:
        pytest.skip("this build of llama.cpp has no ggml-base library of its own")
    ggml = ctypes.CDLL(str(libraries[0]))
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    for kind in TensorType:
        found = (ggml.ggml_blck_size(int(kind)), ggml.ggml_type_size(int(kind)))
        assert found == (kind.block_elements, kind.block_bytes), kind.name


def test_value_types_are_those_of_gguf_py() -> None:
    short = {"UINT": "U", "INT": "I", "FLOAT": "F"}
    for kind in gguf.GGUFValueType:
        letters = kind.name.rstrip("0123456789")
        digits = kind.name.removeprefix(letters)
        assert ValueType[short.get(letters, letters) + digits] == kind


def test_file_types_are_named_as_people_name_them() -> None:
    for kind in gguf.LlamaFileType:
        if kind.name != "GUESSED":
            name = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
            assert FILE_TYPE_NAMES[int(kind)] == name
