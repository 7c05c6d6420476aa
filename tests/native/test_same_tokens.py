"""The weight-only route (`--dtype f32`, `--deterministic`) generates the same tokens as the same
file with its weights unpacked to float32 first: every layout, on real weights.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from driven import Driven
from gguf_folder import write_folder
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native.load import open_model
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.text.vocab.load import open_gguf
from hearth.kernels.cpu.layouts import FORCE, LAYOUTS, multiplied
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.quantize_run import run
from hearth.quant.stored import CODES
from native_runners import advance
from quantized_checkpoints import (
    Quantize,
    compressed_config,
    fp8,
    fp8_config,
    gptq,
    gptq_config,
    nearest_codes,
    nf4,
    nf4_config,
    packed,
    packed_config,
    quantize_folder,
)
from quantizing import GUIDE, planned, smollm2

PROMPTS = {
    "guide": "<|user|>How do I get a bigger model, and how do I know it fits?<|end|><|assistant|>",
    "SmolLM2": "<|im_start|>user\nWhy is the sea salty?<|im_end|>\n<|im_start|>assistant\n",
}
TOKENS = 64
FP8_OF_ROWS = {"num_bits": 8, "type": "float", "strategy": "channel"}


def rounded(*values: int, **options: bool) -> tuple[Quantize, dict[str, Any]]:
    quantize = packed(*values, **options, codes_of=nearest_codes)
    return quantize, packed_config(*values, **options)


FOLDERS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "INT2, groups of 32": (gptq(2, 32, codes_of=nearest_codes), gptq_config(2, 32)),
    "INT3, groups of 32 with zeros": (
        gptq(3, 32, sym=False, codes_of=nearest_codes),
        gptq_config(3, 32, sym=False),
    ),
    "INT4, groups of 32": rounded(4, 32),
    "INT4, groups of 64 with zeros": rounded(4, 64, sym=False),
    "INT4, groups of 32 with zeros, in order": rounded(4, 32, sym=False, order=True),
    "INT4, a shorter last group": rounded(4, 128),
    "INT4, a scale for each output": rounded(4),
    "INT6, groups of 64": rounded(6, 64),
    "INT8, groups of 64": rounded(8, 64),
    "INT8, groups of 32 with zeros": rounded(8, 32, sym=False),
    "INT8, a scale for each output": rounded(8),
    "FP8, blocks": (fp8(), fp8_config()),
    "FP8, a scale for each output": (
        fp8(1, 0, ".weight_scale"),
        compressed_config("float-quantized", FP8_OF_ROWS),
    ),
    "NF4": (nf4(), nf4_config()),
    "NF4, double": (nf4(nested=True), nf4_config()),
}
CASES = [*(kind for kind in LAYOUTS if kind not in CODES), *FOLDERS]


@dataclass(frozen=True)
class Original:
    """A model whose weights are quantized here."""

    gguf: Path
    folder: Path
    prompt: list[int]

    def in_layout(self, case: str, folder: Path) -> Path:
        """The model with its matrices in one of `CASES` if its blocks divide the rows; other
        matrices are in shorter blocks that llama.cpp accepts.
        """
        if case not in FOLDERS:
            plan = planned(self.gguf, "Q8_0", f".*={case}", requantize=True)
            return run(plan, folder / "model.gguf").path
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        quantize_folder(folder, *FOLDERS[case])
        return folder


@pytest.fixture(
    scope="module",
    params=["guide", pytest.param("SmolLM2", marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    path = GUIDE if request.param == "guide" else smollm2()
    folder = write_folder(path, tmp_path_factory.mktemp("plain") / "model", "f32")
    tokenizer = open_gguf(check(path))
    return Original(
        path, folder, tokenizer.encode(PROMPTS[request.param], special=True, add_bos=False)
    )


def written(path: Path, prompt: list[int], **settings: Any) -> tuple[list[int], Decoder]:
    """The greedy output of the model of `path` after `prompt`, and its decoder."""
    chosen = ModelSettings(
        threads=1, batch_threads=1, context=256, kv_type="f32", max_sessions=1, **settings
    )
    model = open_model(ModelSpec(str(path), settings=chosen))
    try:
        runner, tokens = Driven(model.runner), []
        given = prompt
        while len(tokens) < TOKENS:
            tokens.append(int(advance(runner, 0, given)[-1].argmax()))
            given = tokens[-1:]
        return tokens, model.runner.decoder  # type: ignore[attr-defined]
    finally:
        model.runner.close()


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_weights_in_float32(
    case: str, original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert multiplied(), "run `make`"
    threads = torch.get_num_threads()
    path = original.in_layout(case, tmp_path)
    try:
        found, decoder = written(path, original.prompt, dtype="f32")
        tiled, _ = written(path, original.prompt, deterministic=True)
        monkeypatch.setenv(FORCE, "off")
        expected, plain = written(path, original.prompt, dtype="f32")
    finally:
        torch.set_num_threads(threads)
    kinds = {one.matrix.kind for one in decoder.modules() if isinstance(one, PackedLinear)}
    assert any(case.split(",")[0] in kind for kind in kinds)
    assert all("exact" in kind for kind in kinds)
    assert not any(isinstance(one, PackedLinear) for one in plain.modules())
    assert found == tiled == expected
