"""Every family whose folders become GGUF files."""

from __future__ import annotations

from typing import Final

from hearth.quant.convert.gemma import GEMMA2, GEMMA3
from hearth.quant.convert.gpt_oss import GPT_OSS
from hearth.quant.convert.llama import LLAMA, MISTRAL, MIXTRAL, SMOLLM3
from hearth.quant.convert.model import Model
from hearth.quant.convert.phi3 import PHI3
from hearth.quant.convert.qwen import QWEN2, QWEN3, QWEN3_MOE
from hearth.quant.errors import UnsupportedModel
from hearth.quant.gguf.faults import quoted
from hearth.quant.json_fields import Fields

FAMILIES: Final = (
    *(LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE),
    *(GEMMA2, GEMMA3, PHI3, SMOLLM3, GPT_OSS),
)
_HEADS = ("ForCausalLM", "ForConditionalGeneration", "Model")


def describe(fields: Fields) -> Model:
    """The model of a `config.json` in the words of GGUF.

    Raises:
        UnsupportedModel: an unknown family, a class that writes no text, or a variant that
            llama.cpp has no words or no code for.
        CorruptFile: a value that cannot be.
    """
    kind = fields.text("model_type")
    family = next((one for one in FAMILIES if kind in one.model_types), None)
    if family is None:
        known = ", ".join(name for one in FAMILIES for name in one.model_types)
        raise UnsupportedModel(
            f"{fields.path}: models of the kind {quoted(kind)} cannot be converted; what can: "
            f"{known}.",
            "Take a GGUF of this model.",
            architecture=kind[:80],
        )
    classes = fields.texts("architectures")
    if classes and not any(name.endswith(_HEADS) for name in classes):
        raise UnsupportedModel(
            f"{fields.path}: the model is a {quoted(classes[0])}, which writes no text.",
            "Choose a model whose class ends in " + " or ".join(_HEADS) + ".",
            architecture=classes[0][:80],
        )
    return family.describe(fields)
