"""Notices for the user about how a model was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hearth.quant.families.config import ModelConfig

OWN_HEAD: Final = (
    "The output matrix differs from the embedding, though config.json says that they are one "
    "(tie_word_embeddings): both are used, as in transformers."
)
_SHOWN_NAMES: Final = 5
_WORTH_TELLING_BYTES: Final = 1 << 30


def about_positions(config: ModelConfig, context: int) -> tuple[str, ...]:
    """A notice that all texts use longrope's factors for long texts, if the context is long.

    transformers chooses the factors by the length of each text, which would invalidate the keys and
    values of its beginning once it grows.

    Args:
        context: most tokens of a sequence.
    """
    originals = {
        layer.rope.scaling.original_context
        for layer in config.layers
        if layer.rope and layer.rope.scaling and layer.rope.scaling.kind == "longrope"
    }
    exceeded = [original for original in originals if context > original]
    if not exceeded:
        return ()
    return (
        f"With a context of {context:,} tokens positions are stretched for long texts (longrope), "
        f"in short ones too; a context (--ctx) of {min(exceeded)} uses the short factors.",
    )


def about_packing(
    packed_bytes: int, unpacked_bytes: int, available_bytes: int, *, packed: bool, on_gpu: bool
) -> tuple[str, ...]:
    """A notice about packed weights, if one is due.

    It reports that the weights were unpacked and take much more memory, or that they stay packed
    and a GPU unpacks them in each step, which is slow.

    Args:
        packed_bytes, unpacked_bytes: size of the weights in memory, packed and unpacked.
        available_bytes: memory that was free before the weights were loaded.
        packed: the weights stay packed.
    """
    if packed:
        if not on_gpu or unpacked_bytes == packed_bytes:
            return ()
        return (
            f"The weights stay packed, since unpacked they would take {unpacked_bytes / 1e9:.1f} "
            f"GB of the {available_bytes / 1e9:.1f} GB that are free on the GPU. They are unpacked "
            "in every step, which is slow; a GGUF is faster with --backend llamacpp.",
        )
    if unpacked_bytes - packed_bytes < _WORTH_TELLING_BYTES:
        return ()
    said = (
        "The weights are unpacked, which is faster: they take "
        f"{unpacked_bytes / 1e9:.1f} GB instead of {packed_bytes / 1e9:.1f} GB."
    )
    if on_gpu:
        return (said,)
    return (
        f"{said} A memory_fraction (--memory-fraction) of "
        f"{_fraction_that_keeps_packed(unpacked_bytes, available_bytes):.2g} keeps them packed.",
    )


def _fraction_that_keeps_packed(unpacked_bytes: int, available_bytes: int) -> float:
    """A `memory_fraction` that keeps weights packed, by the rule of `footprint.stays_packed`.

    It is a tenth lower than needed, because free memory changes.
    """
    return 0.9 * 2 * unpacked_bytes / max(available_bytes, 1)


def about_tensors(unknown: Sequence[str]) -> tuple[str, ...]:
    """A notice about unknown tensors in the file."""
    if not unknown:
        return ()
    shown = ", ".join(unknown[:_SHOWN_NAMES])
    more = len(unknown) - _SHOWN_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"Tensors of the file are not known and not used: {shown}{rest}. The model may not be what "
        "its config says.",
    )
