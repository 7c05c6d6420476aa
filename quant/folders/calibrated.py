"""The interface of a runner for methods that need a model's activations: the embedding, and the
blocks one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hearth.kernels.packed_weight import PackedWeight
    from hearth.quant.folders.matrices import Matrix

OnInputs = Callable[[str, int | None, "Tensor"], None]
"""Called with a module of a layer ("qkv", "out", "gate_up", "down", "experts.gate_up",
"experts.down"), the number of an expert or None, and the module's inputs [rows, inputs], which must
not be kept or written to."""


class CalibratedBlock(Protocol):
    """One layer, whose weights are in memory until the next one is requested."""

    def run(
        self, hidden: Tensor, on_inputs: OnInputs | None = None, *, until: str | None = None
    ) -> Tensor:
        """The layer's output for one text.

        Args:
            hidden: [tokens, width], the output of the block before; it is not changed.
            on_inputs: called for each module with its inputs, in the order of computation.
            until: stop once the inputs of this module are computed, and return `hidden`.
        """
        ...

    def weight(self, matrix: Matrix) -> Tensor:
        """[outputs, inputs] float: the current weights of `matrix`. Writing to it changes the
        layer.
        """
        ...

    def replace(self, matrix: Matrix, weight: PackedWeight) -> None:
        """Make the layer compute with the dequantized `weight` from now on."""
        ...

    def plain(self, name: str) -> Tensor:
        """A norm or bias of the layer by its name in the decoder, such as "attention_norm.weight".
        Writing to it changes the layer.
        """
        ...


class CalibratedModel(Protocol):
    """A model with one block in memory."""

    def tokens(self, text: str) -> Sequence[int]:
        """The tokens of `text`, without special tokens before it."""
        ...

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, width]: the input of the first block for a text."""
        ...

    def block(self, index: int) -> CalibratedBlock:
        """Layer `index` with its stored weights; the previous layer is released.

        Raises:
            CorruptFile: weights are NaN or infinite.
        """
        ...

    def close(self) -> None:
        """Close all files."""
        ...


OpenModel = Callable[[Path, int], CalibratedModel]
"""Opens the model in a folder, for texts of the given number of tokens. Raises a `HearthError` with
the reason if it cannot be opened.
"""
