"""Blocks that are run one at a time give the same as the decoder, and calibrated methods round with
the help of activations.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hearth.backends.native.calibrated import CalibratedFolder
from hearth.quant.folders.fold import fold_scales
from hearth.quant.folders.matrices import Matrices, matrices_of
from hearth.quant.folders.methods import Runner
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Quantized, methods
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.safetensors import SafetensorsFolder
from loaded_weights import load_folder
from native_decoders import family_and_config, logits_of
from tiny_folders import rewrite, tiny_folder
from tokenizer_folders import PROSE

TOKENS = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()
WINDOWS = {"samples": 9, "seq-len": 24, "group": 16, "calibration": str(PROSE)}
Options = dict[str, Any]


class Interrupted(Exception):
    pass


def opened(folder: Path) -> tuple[CalibratedFolder, Matrices]:
    family, config = family_and_config(read_fields(folder / "config.json"))
    matrices = matrices_of(family, config, SafetensorsFolder(folder).stored)
    return CalibratedFolder(folder, config.context), matrices


def made(
    source: Path,
    target: Path,
    name: str,
    options: Options,
    check: Callable[[], None] = lambda: None,
) -> Quantized:
    method = methods(Runner(CalibratedFolder, PROSE)).named(name)
    return method.run(
        method.plan(source, name, options if name == "int4" else {**WINDOWS, **options}),
        target,
        threads=1,
        replace=False,
        on_progress=lambda done, total, tensor: None,
        on_note=lambda note: None,
        check=check,
    )


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3_moe", "mixtral", "gemma3", "phi3"])
def test_blocks_give_what_the_decoder_gives(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(family, tmp_path / "model")
    model, matrices = opened(folder)
    decoder, _ = load_folder(folder)
    hidden = model.embed(TOKENS)
    for block in matrices.blocks:
        hidden = model.block(block.index).run(hidden)
    expected = logits_of(decoder, TOKENS)
    found = decoder.logits(decoder.norm(hidden))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_inputs_are_those_of_the_matrices(family: str, tmp_path: Path) -> None:
    """The captured inputs of a matrix are the ones that it is multiplied by: with another matrix in
    its place the layer's output changes accordingly, and the earlier stages stay the same.
    """
    folder = tiny_folder(family, tmp_path / "model")
    model, matrices = opened(folder)
    hidden, block = model.embed(TOKENS), model.block(0)
    before = block.run(hidden)
    inputs: list[tuple[str, int | None, Tensor]] = []

    def look(module: str, expert: int | None, x: Tensor) -> None:
        inputs.append((module, expert, x.clone()))

    block.run(hidden, look)
    modules = list(dict.fromkeys(module for module, _, _ in inputs))
    assert modules == [stage.module for stage in matrices.blocks[0].stages]
    for stage in matrices.blocks[0].stages:
        own = {expert: x for module, expert, x in inputs if module == stage.module}
        assert set(own) <= set(stage.groups)
        rows = sum(len(x) for x in own.values())
        assert rows == len(TOKENS) * (1 if None in own else 3)
        seen: list[str] = []
        found = block.run(
            hidden, lambda module, expert, x, s=seen: s.append(module), until=stage.module
        )
        assert torch.equal(found, hidden) and seen[-1] == stage.module
    last = matrices.blocks[0].stages[-1]
    expert, x = next((e, x) for module, e, x in inputs if module == last.module)
    (down,) = last.groups[expert]
    weight = block.weight(down).clone()
    packed = round_plain(weight, Grid(group=16))
    block.replace(down, packed)
    assert torch.equal(block.weight(down), packed.unpacked(torch.float32))
    change = (block.run(hidden) - before).norm()
    assert change > 0
    if expert is None:
        expected = (x @ (block.weight(down) - weight).T).norm()
        assert change == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3", "qwen3_moe", "gemma3", "phi3"])
def test_folds_leave_what_a_block_computes(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """GQA, biases, norms of heads, norms minus one, experts; norms in their stored dtype."""
    folder = tiny_folder(family, tmp_path / "model")
    rewrite(folder, lambda tensors: tensors.update({n: t.to(dtype) for n, t in tensors.items()}))
    model, matrices = opened(folder)
    _, config = family_and_config(read_fields(folder / "config.json"))
    file = SafetensorsFolder(folder)
    layer = model.block(0)
    hidden = [model.embed(TOKENS)]
    before, weight = layer.run(hidden[0]), layer.weight(next(iter(matrices.blocks[0].matrices)))
    weight = weight.clone()
    folded = fold_scales(
        layer,
        matrices.blocks[0],
        config,
        Grid(group=16),
        hidden,
        set(),
        file.read,
        lambda share: None,
    )
    assert any(one["used"] for one in folded.facts.values())
    assert not torch.equal(layer.weight(next(iter(matrices.blocks[0].matrices))), weight)
    for name, tensor in folded.changed.items():
        stored = file.read(name)
        assert tensor.dtype == stored.dtype and tensor.shape == stored.shape
    change = (layer.run(hidden[0]) - before).abs().max() / before.abs().max()
    # A bias is rounded once more.
    is_rounded = dtype == torch.bfloat16 and any("bias" in name for name in folded.changed)
    assert change < (1e-2 if is_rounded else 1e-5)


@pytest.mark.parametrize(
    ("family", "method", "options"),
    [
        ("qwen2", "gptq", {}),
        ("llama3", "gptq", {"order": "no-act-order", "format": "gptq"}),
        ("qwen3_moe", "best", {"symmetry": "sym"}),
        ("gemma3", "best", {}),
        ("qwen2", "awq", {"format": "awq", "clip": "no-clip"}),
        ("gemma3", "awq", {"symmetry": "sym"}),
    ],
)
def test_interruptions_change_no_byte(
    family: str, method: str, options: Options, tmp_path: Path
) -> None:
    """Hidden states are computed again from the blocks that are written."""
    source = tiny_folder(family, tmp_path / "model")
    whole = made(source, tmp_path / "whole", method, options)
    target, limit = tmp_path / "made", 40
    while True:
        left = limit

        def check() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Interrupted

        try:
            result = made(source, target, method, options, check)
            break
        except Interrupted:
            limit += 40
    assert limit > 80 and result.sha256 == whole.sha256
    facts, expected = (json.loads(one.manifest.read_text()) for one in (result, whole))
    assert facts["recipe"] == expected["recipe"]
    decoder, _ = load_folder(result.path, exact=True)
    assert torch.isfinite(logits_of(decoder, TOKENS)).all()


def test_gptq_loses_less_and_the_best_least(tmp_path: Path) -> None:
    """The error is that of logits on a part of the text that was not used for calibration; "best"
    selects the method with the least error for each matrix.
    """
    source = tiny_folder("llama2", tmp_path / "model")
    text = opened(source)[0].tokens(PROSE.read_text(encoding="utf-8"))[-500:]
    expected = logits_of(load_folder(source)[0], text)

    def lost(folder: Path) -> float:
        found = logits_of(load_folder(folder, packed=frozenset())[0], text)
        return float((found - expected).norm() / expected.norm())

    best = made(source, tmp_path / "best", "best", {"samples": 64, "symmetry": "sym"})
    choices = best.facts["recipe"]["choices"]
    assert len(choices) == 2 * 7
    for one in choices.values():
        assert one["errors"][one["method"]] == min(one["errors"].values())
        assert one["errors"][one["method"]] <= one["errors"]["plain"]
    plain = made(source, tmp_path / "plain", "int4", {"group": 16})
    assert lost(best.path) < lost(plain.path)


def test_a_text_that_is_too_short(tmp_path: Path) -> None:
    source = tiny_folder("llama2", tmp_path / "model")
    short = tmp_path / "short.txt"
    short.write_text("A few words.")
    with pytest.raises(CannotQuantize, match="two windows"):
        made(source, tmp_path / "made", "gptq", {"calibration": str(short)})
