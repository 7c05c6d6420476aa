"""A folder of safetensors for calibration by `hearth.quant.folders`.

One block is in memory at a time, in float32 on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hearth.backends.native.model_folder import read_config
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.experts import ExpertMatrix
from hearth.backends.native.models.layers import Layer
from hearth.backends.native.paged_attention import PagedAttention
from hearth.backends.native.text_pages import TextPages
from hearth.backends.native.weights import WeightLoader
from hearth.backends.text.vocab import load as vocabularies
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.families.inventory import take_inventory
from hearth.quant.families.source import rows_of
from hearth.quant.folders.calibrated import OnInputs
from hearth.quant.folders.matrices import STAGES, Matrix
from hearth.quant.safetensors import SafetensorsFolder
from hearth.quant.stored import LOADED
from hearth.quant.tied_weights import as_stored

_DTYPE = torch.float32


class _Enough(Exception):
    """Ends the computation of a layer once everything needed from it is known."""


class CalibratedFolder:
    """Implements `hearth.quant.folders.calibrated.CalibratedModel`.

    Args:
        tokens: most tokens of a text.

    Raises:
        ModelNotFound, CorruptFile, UnsupportedModel: the model cannot be run.
        DoesNotFit: there is no memory for the keys and values of a text.
    """

    def __init__(self, folder: Path, tokens: int) -> None:
        _, family, said, checkpoint = read_config(folder)
        self._tokenizer = vocabularies.open_folder(folder, rows=said.vocab_size)
        self._file = SafetensorsFolder(folder, checkpoint)
        config = as_stored(said, self._file.headers, self._file.stored)
        self._config = config.for_context(tokens)
        self._wanted = take_inventory(
            family, config, self._file.stored, is_gguf=False, kinds=LOADED
        ).wanted
        device = torch.device("cpu")
        self._decoder = Decoder(self._config, device, _DTYPE, context=tokens)
        self._loader = WeightLoader(self._decoder, self._file, device)
        self._pages = TextPages(
            self._config, [tokens], step_tokens=tokens, dtypes=(_DTYPE, _DTYPE), device=device
        )

    def tokens(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, special=False, add_bos=False)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        (part,) = self._wanted["embedding.weight"].choice
        table = rows_of(part, [self._file.read(name) for name in part.names])
        return table[torch.tensor(tokens)].to(_DTYPE) * self._decoder.embedding_scale

    def block(self, index: int) -> CalibratedLayer:
        for number, layer in enumerate(self._decoder.layers):
            if any(not one.is_meta for one in layer.parameters()):
                self._decoder.layers[number] = Layer(self._config, number, _DTYPE)
        place = f"layers.{index}"
        for name, module in list(self._decoder.layers[index].named_modules(prefix=place)):
            leaves = [leaf for leaf, _ in module.named_parameters(recurse=False)]
            if leaves:
                wanted = {leaf: self._wanted[f"{name}.{leaf}"] for leaf in leaves}
                self._loader.fill(name, module, wanted)
        layer = self._decoder.layers[index]
        assert isinstance(layer, Layer)
        return CalibratedLayer(layer, self._compute)

    def _compute(self, layer: Layer, hidden: Tensor) -> Tensor:
        rows = self._pages.rows([len(hidden)])
        attend = PagedAttention(self._pages.pool, self._config, rows, compute=_DTYPE)
        rotaries = self._decoder.rotaries(torch.arange(len(hidden)))
        rope = self._config.layers[layer.index].rope
        output: Tensor = layer(hidden, rotaries[rope] if rope else None, attend)
        return output

    def close(self) -> None:
        self._file.close()


class CalibratedLayer:
    """Implements `hearth.quant.folders.calibrated.CalibratedBlock`."""

    def __init__(self, layer: Layer, compute: Callable[[Layer, Tensor], Tensor]) -> None:
        self._layer = layer
        self._compute = compute

    def run(
        self, hidden: Tensor, on_inputs: OnInputs | None = None, *, until: str | None = None
    ) -> Tensor:
        with self._watched(on_inputs, until):
            try:
                return self._compute(self._layer, hidden.clone())
            except _Enough:
                return hidden

    @contextmanager
    def _watched(self, on_inputs: OnInputs | None, until: str | None) -> Iterator[None]:
        """Pass the inputs of the modules to `on_inputs`; stop after those of the module `until`."""
        handles = []

        def watch(name: str, module: nn.Module) -> None:
            def look(_: nn.Module, values: tuple[Any, ...]) -> None:
                if on_inputs is not None and isinstance(module, ExpertMatrix):
                    rows, offsets = values
                    for expert, (begin, end) in enumerate(pairwise(offsets.tolist())):
                        if begin < end:
                            on_inputs(name, expert, rows[begin:end])
                elif on_inputs is not None:
                    on_inputs(name, None, values[0])
                if name == until:
                    raise _Enough

            handles.append(module.register_forward_pre_hook(look))

        modules = dict(self._layer.named_modules())
        for name in STAGES:
            if name in modules:
                watch(name, modules[name])
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def weight(self, matrix: Matrix) -> Tensor:
        _, _, name = matrix.parameter.split(".", 2)
        whole = self._layer.get_parameter(name)
        rows = whole if matrix.expert is None else whole[matrix.expert]
        return rows[matrix.first_row : matrix.first_row + matrix.outputs]

    def replace(self, matrix: Matrix, weight: PackedWeight) -> None:
        weight.unpack_into(self.weight(matrix))

    def plain(self, name: str) -> Tensor:
        return self._layer.get_parameter(name)
