"""Making an importance matrix: sums of squared inputs of each weight matrix, and their file.

Sums and file format are those of llama.cpp's `tools/imatrix/imatrix.cpp` (`collect_imatrix`,
`save_imatrix`). A runner runs the model and adds its inputs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.imatrix import WINDOW_TOKENS
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.writer import lay_out, padded, pair_bytes, strings_bytes

MOST_WINDOWS = 128
"""Maximum number of windows; the rest of a longer text is not used."""
_FEWEST_TOKENS = 32

Floats = NDArray[np.float32]


class Sums:
    """Sums of squared inputs, by tensor.

    Args:
        wanted: the tensors to sum for; others are ignored.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.wanted = frozenset(wanted)
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(
        self, names: Sequence[str], rows: Floats, *, matrix: int = 0, matrices: int = 1
    ) -> None:
        """Add the inputs of one matrix.

        Args:
            names: the tensors with the same inputs, such as queries, keys and values.
            rows: [tokens, columns] float32.
            matrix: index of the matrix among the `matrices` of a tensor, such as experts.

        Raises:
            CannotQuantize: a value is not a finite number.
        """
        squares = np.einsum("tc,tc->c", rows, rows, dtype=np.float64)
        if not np.isfinite(squares).all():
            raise CannotQuantize(
                f"The input of {names[0]} is no finite number on the calibration text.",
                "The model is damaged, or overflows in this precision.",
                tensor=names[0],
            )
        for name in self.wanted.intersection(names):
            if name not in self._sums:
                self._sums[name] = np.zeros((matrices, rows.shape[1]))
                self._counts[name] = np.zeros(matrices, np.int64)
            self._sums[name][matrix] += squares
            self._counts[name][matrix] += len(rows)

    def add_sorted(self, names: Sequence[str], rows: Floats, offsets: Sequence[int]) -> None:
        """Add the inputs of the experts of a layer.

        Args:
            rows: [choices, columns] float32, sorted by expert.
            offsets: [experts + 1], the first row of each expert, and the number of rows.
        """
        count = len(offsets) - 1
        for expert in range(count):
            part = rows[offsets[expert] : offsets[expert + 1]]
            self.add(names, part, matrix=expert, matrices=count)

    def write(self, path: Path, *, dataset: str, windows: int) -> None:
        """Write the matrix in the format of `llama-imatrix`, completely or not at all.

        Args:
            dataset: name of the text that it was made from.
            windows: number of windows of the text.

        Raises:
            CannotQuantize: nothing was added.
            OSError: the file cannot be written.
        """
        if not self._sums:
            raise CannotQuantize("No matrix of this model was used: there is nothing to weigh.")
        data: list[tuple[str, Floats]] = []
        for name in sorted(self._sums):
            counts = self._counts[name].astype(np.float32)[:, None]
            data.append((f"{name}.in_sum2", self._sums[name].astype(np.float32)))
            data.append((f"{name}.counts", counts))
        pairs = {
            "general.type": pair_bytes("general.type", ValueType.STRING, "imatrix"),
            "imatrix.datasets": strings_bytes("imatrix.datasets", [dataset]),
            "imatrix.chunk_count": pair_bytes("imatrix.chunk_count", ValueType.U32, windows),
            "imatrix.chunk_size": pair_bytes("imatrix.chunk_size", ValueType.U32, WINDOW_TOKENS),
        }
        layout = lay_out(
            pairs, [(name, array.shape[::-1], TensorType.F32, array.nbytes) for name, array in data]
        )
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as stream:
                stream.write(layout.header)
                for _, array in data:
                    stream.write(array.tobytes())
                    stream.write(bytes(padded(array.nbytes, layout.alignment) - array.nbytes))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def windows_of(ids: Sequence[int], begin: Sequence[int]) -> list[list[int]]:
    """Divide `ids` into windows of `WINDOW_TOKENS`, each starting with `begin`. Of several windows,
    an incomplete last one is left out.

    Args:
        ids: tokens of the text.
        begin: tokens that the model expects before any text.

    Raises:
        CannotQuantize: the text is too short.
    """
    if len(ids) < _FEWEST_TOKENS:
        raise CannotQuantize(
            f"The calibration text has {len(ids):,} tokens; at least {_FEWEST_TOKENS} are needed.",
            "Take a text of a few pages (--calibration).",
        )
    step = WINDOW_TOKENS - len(begin)
    starts = range(0, max(1, len(ids) - step + 1), step)
    return [[*begin, *ids[start : start + step]] for start in starts[:MOST_WINDOWS]]
