"""A fingerprint of the weights in a model's files, without reading all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SAMPLES: Final = 1024
"""Number of samples over all files together, at equal distances."""
SAMPLE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file of weights."""

    path: Path
    header_bytes: int
    """Size of the part before the weights, which is read completely."""


def fingerprint(files: Iterable[WeightFile]) -> str:
    """The fingerprint of the contents of `files`, in their order, regardless of their location. It
    reads the headers and about 4 MiB of weights, however large the files are.

    The fingerprint changes with any size, any byte of a header and any sampled byte: another model,
    another quantization, a fine-tuned version, rewritten weights, a changed metadata value. It is
    not a checksum: it stays the same if files of the same size and header differ only between the
    samples, as after damage to a few bytes or an edit of single rows.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    sizes = [(file, file.path.stat().st_size) for file in files]
    distance = max(sum(size for _, size in sizes) // SAMPLES, SAMPLE_BYTES)
    for file, size in sizes:
        digest.update(f"{size} {file.header_bytes}\n".encode())
        with file.path.open("rb") as stream:
            digest.update(stream.read(file.header_bytes))
            for start in range(file.header_bytes, size, distance):
                stream.seek(start)
                digest.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(0, size - SAMPLE_BYTES))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()
