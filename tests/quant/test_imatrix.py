"""Importance matrices in both formats, none of which is trusted."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from gguf_builder import mutate
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.gguf import imatrix
from quantizing import save_imatrix


def legacy(values: dict[str, list[float]], calls: int, dataset: str = "old.txt") -> bytes:
    out = struct.pack("<i", len(values))
    for name, numbers in values.items():
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", calls, len(numbers)) + struct.pack(f"<{len(numbers)}f", *numbers)
    return out + struct.pack("<ii", 9, len(dataset)) + dataset.encode()


def test_both_forms_of_a_matrix_are_read(tmp_path: Path) -> None:
    rows = np.array([[1.0, 2.0, 4.0], [8.0, 0.5, 0.0]], dtype=np.float32)
    new = imatrix.read(save_imatrix(tmp_path / "im.gguf", {"a": rows}))
    assert new.columns("a").tolist() == rows.reshape(-1).tolist()
    assert (new.dataset, new.chunks) == ("some text.txt", 12)
    assert new.columns("b") is None
    (tmp_path / "im.dat").write_bytes(legacy({"a": [4.0, 8.0], "b": [2.0]}, calls=4))
    old = imatrix.read(tmp_path / "im.dat")
    assert old.columns("a").tolist() == [1.0, 2.0]
    assert (old.dataset, old.chunks, len(old.entries)) == ("old.txt", 9, 2)


def test_an_expert_that_saw_nothing_counts_all_columns_alike(tmp_path: Path) -> None:
    rows = np.zeros((2, 3), dtype=np.float32)
    path = save_imatrix(tmp_path / "im.gguf", {"a": rows}, counts=0.0)
    assert imatrix.read(path).columns("a").tolist() == [1.0] * 6


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_matrix_with_impossible_values_is_refused(tmp_path: Path, bad: float) -> None:
    (tmp_path / "im.dat").write_bytes(legacy({"a": [1.0, bad]}, calls=1))
    with pytest.raises(CorruptFile, match="negative or no finite"):
        imatrix.read(tmp_path / "im.dat").columns("a")


def test_damaged_matrices_are_refused_and_never_crash(tmp_path: Path) -> None:
    rng = random.Random(5)
    new = save_imatrix(tmp_path / "im.gguf", {"a": np.ones((2, 64), np.float32)}).read_bytes()
    old = legacy({f"blk.{i}.x": [1.0] * 20 for i in range(5)}, calls=3)
    for _ in range(300):
        path = tmp_path / "damaged"
        path.write_bytes(mutate(rng.choice((new, old)), rng))
        try:
            found = imatrix.read(path)
            for name in found.entries:
                found.columns(name)
        except (CorruptFile, UnsupportedModel):
            continue
