"""What is assumed of a model of which only the Hub's or the catalogue's entry is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from hearth.app.library.catalogue import Entry, Shape
from hearth.app.library.hub import Repository
from hearth.quant.memory_shape import ModelShape, guessed_shape

_USUAL_BITS: Final = 4.85
"""Of a weight, where nothing says how many weights a file has: those of Q4_K_M."""
_ARCHITECTURE: Final = "unknown"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What an entry says of a model. Only the size must be known.

    Attributes:
        size_bytes: of all its files.
        parameters: its weights.
        active_parameters: those that a token uses, where they are fewer.
        context: tokens that it was trained for.
        shape: from which the size of keys and values follows.
        generates: False: it embeds or ranks texts.
    """

    size_bytes: int
    parameters: int | None = None
    active_parameters: int | None = None
    context: int | None = None
    shape: Shape | None = None
    generates: bool = True

    @property
    def read_bytes(self) -> int:
        """Of weights, that generating a token reads: about; 0 where it generates none."""
        if not self.generates:
            return 0
        if not self.parameters or not self.active_parameters:
            return self.size_bytes
        return round(self.size_bytes * min(1.0, self.active_parameters / self.parameters))


def facts_of(
    size_bytes: int, entry: Entry | None = None, repository: Repository | None = None
) -> FileFacts:
    """What the catalogue and the Hub say of a model together; the Hub's numbers count.

    Args:
        size_bytes: of the file or files.
    """
    parameters = repository.parameters if repository is not None else None
    context = repository.context if repository is not None else None
    if entry is None:
        return FileFacts(size_bytes, parameters=parameters, context=context)
    return FileFacts(
        size_bytes,
        parameters=parameters or entry.parameters,
        active_parameters=entry.active_parameters,
        context=context or entry.context or None,
        shape=entry.shape,
        generates=entry.purpose in ("chat", "code"),
    )


def shape_for(facts: FileFacts) -> ModelShape:
    """The shape of such a model: known numbers as they are, the others guessed."""
    guessed = guessed_shape(facts.parameters or facts.size_bytes * 8 / _USUAL_BITS)
    known = facts.shape
    if known is None:
        return guessed
    return replace(
        guessed,
        layers=known.layers,
        kv_heads=known.kv_heads,
        kv_heads_in_all=known.layers * known.kv_heads,
        key_length=known.head_size,
        value_length=known.head_size,
    )


@dataclass(frozen=True, slots=True)
class GuessedFacts:
    """Implements `hearth.backends.llamacpp.facts.GgufFacts` without a file, so that a context is
    planned as the worker would."""

    shape: ModelShape
    context_length: int

    @property
    def architecture(self) -> str:
        """A name of which `value` knows keys."""
        return _ARCHITECTURE

    def value(self, key: str, default: Any = None) -> Any:
        """See the protocol."""
        known = {
            "block_count": self.shape.layers,
            "embedding_length": self.shape.width,
            "attention.head_count": self.shape.heads,
            "attention.key_length": self.shape.key_length,
            "attention.value_length": self.shape.value_length,
        }
        return known.get(key.removeprefix(f"{_ARCHITECTURE}."), default)

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        """See the protocol."""
        return self.shape.kv_bytes_per_token(type_k, type_v)
