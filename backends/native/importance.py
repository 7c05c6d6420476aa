"""Importance matrices with the native runner, from the inputs of each linear layer of the decoder.

The model's family (`hearth.quant.families`) names the GGUF tensors that make up a layer. Queries,
keys and values are one layer here, so their tensors get the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hearth.backends.contract.models import Dtype, ModelSettings, ModelSpec
from hearth.backends.errors import InternalError
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.load import open_model
from hearth.backends.native.model_folder import read_config
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.runner import NativeRunner
from hearth.quant.families.family import Family
from hearth.quant.gguf import preflight
from hearth.quant.gguf.imatrix import WINDOW_TOKENS
from hearth.quant.gguf.imatrix_sums import Sums, windows_of


def collect(
    path: Path,
    text: str,
    sums: Sums,
    *,
    threads: int,
    on_window: Callable[[int, int], None],
    dtype: Dtype | None = None,
) -> int:
    """Run the model at `path` over `text` and add the inputs of its layers to `sums`.

    Counterpart of `hearth.backends.llamacpp.importance.collect`.

    Args:
        path: a GGUF file, or a folder of safetensors.
        dtype: of plain weights; None to keep them as they are stored.
    """
    settings = ModelSettings(
        context=WINDOW_TOKENS,
        max_sessions=1,
        threads=threads,
        batch_threads=threads,
        kv_type="f32",
        dtype=dtype,
    )
    loaded = open_model(ModelSpec(str(path), path.stem, settings=settings))
    runner = loaded.runner
    try:
        if not isinstance(runner, NativeRunner):
            raise InternalError(f"{path.name} was opened by {type(runner).__name__}.")
        tokenizer = loaded.tokenizer
        begin = tokenizer.encode("", special=False, add_bos=True)
        windows = windows_of(tokenizer.encode(text, special=True, add_bos=False), begin)
        with ExitStack() as hooks:
            for module, names in _watched(runner.decoder, _family(path), sums):
                hook = module.register_forward_pre_hook(_summing(names, sums))
                hooks.callback(hook.remove)
            runner.decoder.fused = None  # Fused layers call no modules, hence no hooks.
            for done, window in enumerate(windows, 1):
                runner.embed([window], "mean")
                on_window(done, len(windows))
    finally:
        runner.close()
    return len(windows)


def _family(path: Path) -> Family:
    return read_config(path)[1] if path.is_dir() else read_gguf_config(preflight.check(path))[0]


def _watched(
    decoder: Decoder, family: Family, sums: Sums
) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    """The modules whose inputs are wanted, and the names of the tensors they count for."""
    modules: Mapping[str, nn.Module] = dict(decoder.named_modules())
    for parameter, source in family.names(decoder.config).items():
        stored = {name for choice in source.gguf for part in choice for name in part.names}
        names = sorted(stored & sums.wanted)
        if names:
            yield modules[parameter.rpartition(".")[0]], names


def _summing(names: Sequence[str], sums: Sums) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        rows: Tensor = arguments[0]
        data = rows.detach().to("cpu", torch.float32).numpy()
        if len(arguments) > 1:  # Experts also get the offsets of each expert's rows.
            sums.add_sorted(names, data, arguments[1].tolist())
        else:
            sums.add(names, data)

    return hook
