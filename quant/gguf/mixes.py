"""The mixes that people know by name: which type each tensor of a model gets.

A mix has one type for most tensors; what hurts most when it is rounded gets more bits, by its role
and layer. The choices are those of llama.cpp's own quantizer (`llama_tensor_get_type_impl`,
`tensor_allows_quantization` and `tensor_type_fallback` in `llama-quant.cpp`, as of
llama-cpp-python 0.3.36), so that a file made here is the file that people expect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hearth.quant.gguf.errors import BadRecipe, CannotQuantize
from hearth.quant.gguf.facts import ModelFacts
from hearth.quant.gguf.recipe import Recipe
from hearth.quant.gguf.types import TensorType as T
