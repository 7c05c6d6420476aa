"""How rounding activations and weights changes the output of the native runner, on a processor.

    python benchmarks/activations.py --model MODEL.gguf [--tokens 2000] [--text FILE]

A text of 2,000 tokens (this project's documentation) goes through the model in steps of 512
tokens, as prompts do, and in steps of one token, as answers do. Three variants are measured:
bfloat16 for many rows where the processor has AMX, the kernels' int8 activations alone, and weights
unpacked to bfloat16. Each is compared with `--dtype f32` and keys and values in float32: the mean
Kullback-Leibler divergence of the next-token distributions, how often the most likely token is the
same, the perplexity, and the size of the weights in bytes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hearth.backends.contract.models import Dtype, KvType, ModelSettings, ModelSpec
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.load import open_model
from hearth.backends.native.runner import NativeRunner
from hearth.kernels.cpu.layouts import FORCE
from hearth.kernels.cpu.library import cpu_library

PROMPT: Final = 512
DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def computed(
    model: Path, text: str, tokens: int, step: int, dtype: Dtype | None = None
) -> tuple[Tensor, Tensor, int]:
    """Log probabilities [tokens, vocabulary] float64, the tokens, and the bytes of weights.

    Args:
        step: number of tokens that are computed at a time.
    """
    kv_type: KvType = "f32" if dtype == "f32" else "f16"
    settings = ModelSettings(context=tokens, dtype=dtype, kv_type=kv_type, gpu_layers=0)
    loaded = open_model(ModelSpec(path=str(model), settings=settings))
    runner = loaded.runner
    assert isinstance(runner, NativeRunner)
    ids = loaded.tokenizer.encode(text, special=False, add_bos=False)[:tokens]
    blocks = -(-len(ids) // runner.store.page)
    runner.store.grow(0, blocks)
    found = []
    for start in range(0, len(ids), step):
        some = tuple(ids[start : start + step])
        row = Row(slot=0, start=start, tokens=some, outputs=len(some), handle=[range(blocks)])
        logits = runner.step(StepPlan((row,))).logits[0]
        found.append(torch.from_numpy(logits.copy()).double().log_softmax(-1))
    runner.close()
    return torch.cat(found), torch.tensor(ids), loaded.info.size_bytes


def perplexity(found: Tensor, ids: Tensor) -> float:
    return float((-found[:-1].gather(1, ids[1:, None]).mean()).exp())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument(
        "--text", type=Path, nargs="+", default=[DOCS / "faq.md", DOCS / "serve.md"]
    )
    asked = parser.parse_args()
    text = "".join(path.read_text(encoding="utf-8") for path in asked.text)
    exact, ids, size = computed(asked.model, text, asked.tokens, PROMPT, "f32")
    print(f"{datetime.date.today()}, {platform.machine()}; {asked.model.name}; {len(ids)} tokens\n")
    print("| computed as | weights, MB | KL divergence | same first | perplexity |")
    print("|---|---:|---:|---:|---:|")
    print(f"| f32 | {size / 1e6:.0f} | 0 | 100 % | {perplexity(exact, ids):.2f} |")
    cases: tuple[tuple[str, Dtype | None, str, int], ...] = (
        ("as by default, prompts", None, "", PROMPT),
        ("as by default, token by token", None, "", 1),
        ("int8 activations, prompts", None, "avx512", PROMPT),
        ("unpacked to bf16, prompts", "bf16", "", PROMPT),
    )
    for name, dtype, instructions, step in cases:
        os.environ[FORCE] = instructions
        cpu_library.cache_clear()
        found, _, size = computed(asked.model, text, asked.tokens, step, dtype)
        divergence = float((exact.exp() * (exact - found)).sum(-1).mean())
        same = 100 * float((found.argmax(-1) == exact.argmax(-1)).double().mean())
        print(
            f"| {name} | {size / 1e6:.0f} | {divergence:.4f} | {same:.1f} % | "
            f"{perplexity(found, ids):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
