"""Every family that the native runner knows."""

from __future__ import annotations

from typing import Final

from hearth.backends.native.families.family import Family
from hearth.backends.native.families.gemma import GEMMA2, GEMMA3
from hearth.backends.native.families.gpt_oss import GPT_OSS
from hearth.backends.native.families.llama import LLAMA
from hearth.backends.native.families.mistral import MISTRAL, MIXTRAL
from hearth.backends.native.families.phi3 import PHI3
from hearth.backends.native.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from hearth.backends.native.families.smollm3 import SMOLLM3
from hearth.quant.errors import UnsupportedModel

FAMILIES: Final = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA2,
    GEMMA3,
    PHI3,
    SMOLLM3,
    GPT_OSS,
)
_HEADS = ("ForCausalLM", "ForConditionalGeneration", "Model")


def family_of_hf(model_type: str, architectures: tuple[str, ...] = ()) -> Family:
    """The family of a `config.json`.

    Args:
        architectures: the classes it names, for what the type does not tell: a model of a known
            type may be a classifier.

    Raises:
        UnsupportedModel: an unknown type, or a class that writes no text.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            break
    else:
        raise _unknown(model_type, tuple(name for one in FAMILIES for name in one.model_types))
    if architectures and not any(name.endswith(_HEADS) for name in architectures):
        raise UnsupportedModel(
            f"The model is a {architectures[0]}, which writes no text.",
            "The native runner runs " + ", ".join(f"*{head}" for head in _HEADS) + ".",
            architecture=architectures[0],
        )
    return family


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF's `general.architecture`.

    Raises:
        UnsupportedModel: an unknown one.
    """
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    raise _unknown(architecture, tuple(name for one in FAMILIES for name in one.architectures))


def _unknown(name: str, known: tuple[str, ...]) -> UnsupportedModel:
    return UnsupportedModel(
        f"The native runner does not know models of the kind {name[:80]!r}; it knows "
        f"{', '.join(known)}.",
        "Run a GGUF of it with --backend llamacpp.",
        architecture=name[:80],
    )
