"""What rounding activations and weights changes in a model on the native runner, on a processor.

    python benchmarks/activations.py --model MODEL.gguf [--tokens 2000] [--text FILE]

One text of 2,000 tokens (this project's documentation) goes through the model in one step: as it
is computed by default, which is in bfloat16 where the processor has AMX; with int8 activations, as
few rows are; and unpacked to bfloat16. Each is compared with
`--dtype f32`: the mean Kullback-Leibler divergence of its next-token distributions, how often the
most likely token is the same, and its perplexity; and the bytes that weights take.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from pathlib import Path

import torch
from torch import Tensor

from hearth.backends.contract.models import Dtype, ModelSettings, ModelSpec
from hearth.backends.native.load import open_model
from hearth.backends.native.text_attention import TextsAttention
from hearth.kernels.cpu.layouts import FORCE
from hearth.kernels.cpu.library import cpu_library

DOCS = Path(__file__).resolve().parent.parent / "docs"


def computed(
    model: Path, text: str, tokens: int, dtype: Dtype | None
) -> tuple[Tensor, Tensor, int]:
    """Log probabilities [tokens, vocabulary] float64, the tokens, and the bytes of weights."""
    settings = ModelSettings(context=tokens, dtype=dtype, gpu_layers=0)
    loaded = open_model(ModelSpec(path=str(model), settings=settings))
    ids = torch.tensor(loaded.tokenizer.encode(text, special=False, add_bos=False)[:tokens])
    decoder = loaded.runner.decoder  # type: ignore[attr-defined]
    torch.set_num_threads(loaded.info.batch_threads)
    with torch.inference_mode():
        attention = TextsAttention(decoder.config, [len(ids)])
        found = decoder.logits(decoder(ids, torch.arange(len(ids)), attention))
    loaded.runner.close()
    return found.double().log_softmax(-1), ids, loaded.info.size_bytes


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
    exact, ids, size = computed(asked.model, text, asked.tokens, "f32")
    print(f"{datetime.date.today()}, {platform.machine()}; {asked.model.name}; {len(ids)} tokens\n")
    print("| computed as | weights, MB | KL divergence | same first | perplexity |")
    print("|---|---:|---:|---:|---:|")
    print(f"| f32 | {size / 1e6:.0f} | 0 | 100 % | {perplexity(exact, ids):.2f} |")
    cases: tuple[tuple[str, Dtype | None, str], ...] = (
        ("int8 activations", None, "avx512"),
        ("as by default", None, ""),
        ("unpacked to bf16", "bf16", ""),
    )
    for name, dtype, instructions in cases:
        os.environ[FORCE] = instructions
        cpu_library.cache_clear()
        found, _, size = computed(asked.model, text, asked.tokens, dtype)
        divergence = float((exact.exp() * (exact - found)).sum(-1).mean())
        same = 100 * float((found.argmax(-1) == exact.argmax(-1)).double().mean())
        print(
            f"| {name} | {size / 1e6:.0f} | {divergence:.4f} | {same:.1f} % | "
            f"{perplexity(found, ids):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
