"""Safetensors files byte by byte, and the ways in which one can be invalid."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}
DATA = bytes(range(32))


@dataclass(frozen=True)
class Damage:
    """A file that must be refused, with the words that its error must contain."""

    name: str
    content: bytes
    words: str
    is_unsupported: bool = False
    """Well formed, but of a kind that cannot be read."""


def safetensors_bytes(header: object = HEADER, data: bytes = DATA) -> bytes:
    """A file with `header`, which may be anything."""
    return with_text(json.dumps(header), data)


def with_text(text: str | bytes, data: bytes = DATA) -> bytes:
    """A file whose header is `text`."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw + data


def changed(tensor: str, **fields: object) -> bytes:
    """The valid file with other fields of one tensor; None removes a field."""
    entry = {**HEADER[tensor], **fields}
    kept = {key: value for key, value in entry.items() if value is not None}
    return safetensors_bytes({**HEADER, tensor: kept})


def one_tensor(entry: object, data: bytes = b"") -> bytes:
    return safetensors_bytes({"a": entry}, data)


def _archive() -> bytes:
    """The output of `torch.save`: a zip archive with a pickle in it."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    return stream.getvalue()


def _length(value: int) -> bytes:
    """The valid file with another header length."""
    return struct.pack("<Q", value) + safetensors_bytes()[8:]


def _raw(mapping: Mapping[str, str]) -> str:
    """JSON that may have duplicate names: values are JSON, keys end at a '#'."""
    inside = ", ".join(
        f"{json.dumps(key.split('#')[0])}: {value}" for key, value in mapping.items()
    )
    return "{" + inside + "}"


def _entry(start: int, end: int, **fields: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end], **fields}


def damages() -> tuple[Damage, ...]:
    """Every kind of damage."""
    good = safetensors_bytes()
    a = json.dumps(HEADER["a"])
    make: list[tuple[str, bytes, str]] = [
        # The length in front.
        ("empty file", b"", "the file is empty"),
        ("truncated length", good[:5], "the file has only 5 bytes"),
        ("length alone", good[:8], "but only 0 follow it"),
        ("truncated header", good[:40], "but only 32 follow it"),
        ("length of zero", _length(0), "a header has at least 2"),
        ("length beyond the file", _length(len(good) - 7), "follow it"),
        ("huge length", _length((1 << 64) - 1), "at most 100,000,000 allowed"),
        ("length above the limit", _length(100_000_001), "at most 100,000,000 allowed"),
        ("length too short", _length(len(good) - 8 - 32 - 5), "is not JSON"),
        # Files that are not safetensors.
        ("pickle", pickle.dumps({"a": [1.0] * 100}), "a pickle, which may run code"),
        ("zip", _archive(), "a zip archive, as PyTorch's pickles are"),
        ("gguf", b"GGUF" + bytes(60), "a GGUF file"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("web page", b"<!DOCTYPE html><html></html>" + bytes(40), "a web page"),
        # JSON.
        ("not JSON", with_text('{"a": }'), "is not JSON"),
        ("no brace", with_text(' {"a": 1}'), "must begin with"),
        ("not UTF-8", with_text(b'{"\xff": 1}'), "is not UTF-8 at byte 2"),
        ("array", with_text("[1, 2]"), "must begin with"),
        ("too deep", with_text('{"a": ' + "[" * 200_000), "nested too deeply"),
        ("NaN", with_text('{"a": NaN}'), "NaN is no number"),
        ("endless number", with_text('{"a": ' + "1" * 5000 + "}"), "is not JSON"),
        ("two objects", with_text("{}{}", b""), "is not JSON"),
        # Names.
        ("tensor twice", with_text(_raw({"a": a, "a#2": a})), "'a'.*appears twice"),
        ("field twice", with_text('{"a": {"dtype": "U8", "dtype": "U8"}}'), "'dtype'.*twice"),
        ("empty name", safetensors_bytes({"": HEADER["a"]}, DATA[:24]), "name: is empty"),
        # Metadata.
        ("metadata list", safetensors_bytes({**HEADER, "__metadata__": []}), "is a list"),
        (
            "metadata number",
            safetensors_bytes({**HEADER, "__metadata__": {"x": 1}}),
            "'x': is a number, not a string",
        ),
        # Fields of wrong types.
        ("tensor is a list", one_tensor([1]), "'a': is a list, not an object"),
        ("tensor is null", one_tensor(None), "'a': is null, not an object"),
        ("no dtype", changed("a", dtype=None), "has no 'dtype'"),
        ("no shape", changed("a", shape=None), "has no 'shape'"),
        ("no offsets", changed("a", data_offsets=None), "has no 'data_offsets'"),
        ("unknown field", changed("a", extra=1), "unknown field 'extra'"),
        ("dtype is a number", changed("a", dtype=3), "dtype: is a number, not a string"),
        ("unknown dtype", changed("a", dtype="F31"), "'F31' is no type"),
        ("shape is a number", changed("a", shape=6), "shape: is a number, not a list"),
        ("shape of strings", changed("a", shape=["2", 3]), "holds a string, not an integer"),
        ("shape of booleans", changed("a", shape=[True, 6]), "holds true or false"),
        ("shape of fractions", changed("a", shape=[2.0, 3]), "holds a number, not an integer"),
        ("negative shape", changed("a", shape=[-2, -3]), "holds -2"),
        ("too many dimensions", changed("a", shape=[1] * 8 + [6]), "9 dimensions, at most 8"),
        ("overflowed shape", changed("a", shape=[1 << 32, 1 << 32]), "more than 2\\*\\*63 - 1"),
        ("shape that wraps", changed("a", shape=[(1 << 62) + 6]), "more than 2\\*\\*63 - 1"),
        ("offsets of strings", changed("a", data_offsets=["0", 24]), "holds a string"),
        ("one offset", changed("a", data_offsets=[0]), "must be begin and end"),
        ("three offsets", changed("a", data_offsets=[0, 8, 24]), "must be begin and end"),
        # Offsets.
        ("negative offset", changed("a", data_offsets=[-24, 0]), "holds -24"),
        ("offsets backwards", changed("a", data_offsets=[24, 0]), "before they begin"),
        ("offsets and shape", changed("a", shape=[2, 2]), "24 bytes for F32 .* has 16"),
        ("offsets and dtype", changed("a", dtype="F16"), "24 bytes for F16 .* has 12"),
        ("offsets beyond the end", one_tensor(_entry(0, 9), b"x" * 8), "the file ends at byte"),
        (
            "huge offsets",
            one_tensor(_entry(0, 1 << 62), b"x" * 8),
            "the file ends at byte",
        ),
        ("truncated data", good[:-1], "the file ends at byte"),
        ("trailing data", good + b"x", "1 bytes follow the last tensor"),
        (
            "overlap",
            safetensors_bytes({"a": _entry(0, 8), "b": _entry(4, 12)}, b"x" * 12),
            "overlap 'a'",
        ),
        (
            "same place",
            safetensors_bytes({"a": _entry(0, 8), "b": _entry(0, 8)}, b"x" * 8),
            "overlap 'a'",
        ),
        (
            "hole",
            safetensors_bytes({"a": _entry(0, 4), "b": _entry(6, 8)}, b"x" * 8),
            "leave a hole of 2 bytes",
        ),
        ("hole at the start", one_tensor(_entry(4, 8), b"x" * 8), "leave a hole of 4 bytes"),
    ]
    unsupported = Damage(
        "unsupported dtype",
        one_tensor(_entry(0, 8, dtype="F8_E8M0"), b"x" * 8),
        "F8_E8M0, which cannot be read",
        is_unsupported=True,
    )
    return (*(Damage(*one) for one in make), unsupported)
