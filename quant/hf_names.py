"""One spelling for the names of safetensors files, whichever class of model wrote them."""

from __future__ import annotations

from collections.abc import Iterable

_SPELLINGS = (
    # A model with eyes keeps its text part inside: Gemma 3 before and after transformers 4.52.
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    # The bare model, without a head: embedding models of these families.
    ("layers.", "model.layers."),
    ("embed_tokens.", "model.embed_tokens."),
    ("norm.", "model.norm."),
)


def canonical(name: str) -> str:
    """`name` as a text model with a head would have it; names of other parts stay."""
    for found, ours in _SPELLINGS:
        if name.startswith(found):
            return ours + name.removeprefix(found)
    return name


def by_canonical_name(names: Iterable[str]) -> dict[str, str]:
    """The stored `names`, by their canonical spelling."""
    return {canonical(name): name for name in names}
