"""What a runner offers to those who need the activations of a model: an embedding, and its blocks
one at a time.
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
"""Gets a module of a layer ("qkv", "out", "gate_up", "down", "experts.gate_up", "experts.down"),
the number of an expert or None, and what it is multiplied by: [rows, inputs], not to be kept or
written to."""


class CalibratedBlock(Protocol):
    """One layer, whose weights are in memory until the next one is asked for."""

    def run(
        self, hidden: Tensor, on_inputs: OnInputs | None = None, *, until: str | None = None
    ) -> Tensor:
        """The layer's output for one text.

        Args:
            hidden: [tokens, width], as the block before it gave it; it is not changed.
            on_inputs: called for each module with its inputs, in the order of computation.
            until: the module after whose inputs nothing more is computed; the result is `hidden`
                then.
        """
        ...

    def weight(self, matrix: Matrix) -> Tensor:
        """[outputs, inputs] float: its weights as they are now, not to be written to."""
        ...

    def replace(self, matrix: Matrix, weight: PackedWeight) -> None:
        """From now on the layer computes with what `weight` stands for."""
        ...

    def plain(self, name: str) -> Tensor:
        """A norm or bias of the layer by its name in the decoder, such as "attention_norm.weight",
        of which the layer computes with what is written to it.
        """
        ...


class CalibratedModel(Protocol):
    """A model with one block in memory."""

    def tokens(self, text: str) -> Sequence[int]:
        """The tokens of `text`, without any in front."""
        ...

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, width]: what the first block gets for a text."""
        ...

    def block(self, index: int) -> CalibratedBlock:
        """The weights of layer `index` as they are stored; those of the layer before leave memory.

        Raises:
            CorruptFile: its numbers are none.
        """
        ...

    def close(self) -> None:
        """Let go of all files."""
        ...


OpenModel = Callable[[Path, int], CalibratedModel]
"""Opens the model in a folder, for texts of the given number of tokens. Raises a `HearthError` that
says why it cannot be.
"""
