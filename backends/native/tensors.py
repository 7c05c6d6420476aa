"""Where weights come from: files of tensors by name, mapped and not copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from hearth.quant.stored import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor


class TensorFile(Protocol):
    """The tensors of a model, of one file or several. What it gives is mapped: reading it touches
    the disk, and it must not be written to.
    """

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Every tensor by name."""
        ...

    def read(self, name: str) -> Tensor:
        """A tensor in its stored shape and dtype; of a packed matrix the blocks: [*shape[:-1],
        bytes of a row] uint8. Raises KeyError for an unknown name.
        """
        ...

    def release(self, name: str) -> None:
        """What was read of `name` was copied: its pages may leave memory."""
        ...

    def close(self) -> None: ...
