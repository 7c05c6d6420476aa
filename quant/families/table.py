"""Every family that the native runner and the converter know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.family import Family
from hearth.quant.families.gemma import GEMMA2, GEMMA3
from hearth.quant.families.gpt_oss import GPT_OSS
from hearth.quant.families.llama import LLAMA
from hearth.quant.families.mistral import MISTRAL, MIXTRAL
from hearth.quant.families.phi3 import PHI3
from hearth.quant.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from hearth.quant.families.smollm3 import SMOLLM3
from hearth.quant.json_fields import Fields

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


def family_of_hf(fields: Fields) -> Family:
    """The family of a `config.json`.

    Raises:
        UnsupportedModel: the type of model is unknown, or its class does not generate text (a model
            of a known type may be a classifier).
        CorruptFile: the type is missing.
    """
    kind = fields.text("model_type")
    family = next((one for one in FAMILIES if kind in one.model_types), None)
    if family is None:
        raise _unknown(
            str(fields.path), kind, [name for one in FAMILIES for name in one.model_types]
        )
    classes = fields.texts("architectures")
    if classes and not any(name.endswith(_HEADS) for name in classes):
        raise UnsupportedModel(
            f"{fields.path}: the model is a {classes[0][:80]}, which writes no text.",
            "Choose a model whose class ends in " + " or ".join(_HEADS) + ".",
            architecture=classes[0][:80],
        )
    return family


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF's `general.architecture`.

    Raises:
        UnsupportedModel: the architecture is unknown.
    """
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    raise _unknown("GGUF", architecture, [name for one in FAMILIES for name in one.architectures])


def _unknown(where: str, name: str, known: Sequence[str]) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where}: models of the kind {name[:80]!r} are not known; those that are: "
        f"{', '.join(known)}.",
        "Run a GGUF of it with --backend llamacpp.",
        architecture=name[:80],
    )
