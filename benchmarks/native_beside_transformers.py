"""The native runner beside transformers, on the same weights in the same run.

    python benchmarks/native_beside_transformers.py [--rounds 3] [--shape qwen3-0.6b] [--dtype bf16]

Weights are random, of a real model's shape. Each line is a ratio of medians over rounds in which
both sides take turns; over 1 is faster than transformers.

- prefill: one prompt of 512 tokens, its first token included; transformers' forward pass.
- decode × n: tokens a second of n sessions; transformers' `generate` with its default cache.
- batcher × 8: the same beside transformers' continuous batching (`generate_batch`), prompts of
  both included.

transformers must be installed; nothing else of Hearth needs it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import transformers

from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.contract import ModelInfo, ModelSettings
from hearth.backends.native.families.table import family_of_hf
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.weights import load_weights
from hearth.backends.runners import Loaded
from hearth.kernels.device import best_device, free_bytes, multiplies
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder

PROMPT: Final = 512
SHORT: Final = 32
"""Tokens of the prompts before decoding is measured."""
DTYPES: Final = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SHAPES: Final = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}


class _Speechless:
    """In the place of a tokenizer: no text is looked at."""

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """Nothing."""
        return b""


class Ours:
    """The native runner under the engine, as a worker has it."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        fields = read_fields(folder / "config.json")
        family = family_of_hf(fields.text("model_type"), fields.texts("architectures"))
        config = family.from_hf(fields)
        settings = ModelSettings(context=2048, kv_type="f32" if dtype == torch.float32 else "f16")
        plan = plan_memory(
            settings,
            config,
            device=device,
            dtype=dtype,
            compute_dtype=dtype if multiplies(device, dtype) else torch.float32,
            weight_bytes=0,
            available_bytes=free_bytes(device),
        )
        decoder = Decoder(config, device, dtype, activations=plan.compute_dtype, context=2048)
        load_weights(decoder, family, SafetensorsFolder(folder), device, mapped=False)
        threads = torch.get_num_threads()
        runner = NativeRunner(
            decoder,
            plan,
            end_ids=frozenset(),
            fingerprint=b"benchmark",
            own_pooling="mean",
            threads=threads,
            batch_threads=threads,
            on_close=lambda: None,
        )
        self._side = EngineSide(Loaded(runner, _Speechless(), _NO_INFO, None))  # type: ignore[arg-type]

    def prefill(self, prompt: list[int]) -> float:
        """Seconds until its first token."""
        took = self._side.prefill(prompt)
        self._side.clear()
        return took

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for `count` tokens of each, after the prompts."""
        self._side.start(prompts, 0, len(prompts[0]) + count + 8)
        took = self._side.decode(count)
        self._side.clear()
        return took

    def whole(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for prompts and `count` tokens of each."""
        began = time.perf_counter()
        self._side.start(prompts, 0, len(prompts[0]) + count + 8)
        self._side.decode(count - 1)
        took = time.perf_counter() - began
        self._side.clear()
        return took


class Theirs:
    """transformers on the same weights."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        model = transformers.Qwen3ForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        )
        self._model = model.to(device).eval()

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one forward pass, of whose logits only the last are made."""
        ids = torch.tensor([prompt], device=self._device)
        began = time.perf_counter()
        logits = self._model(ids, use_cache=True, logits_to_keep=1).logits
        int(logits[0, -1].argmax())
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """Seconds of `generate` for `count` tokens more than it needs for the first."""
        return self._generate(prompts, count + 1) - self._generate(prompts, 1)

    def batcher(self, prompts: list[list[int]], count: int) -> float:
        """Seconds of `generate_batch` for prompts and `count` tokens of each."""
        config = transformers.GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        began = time.perf_counter()
        found = self._model.generate_batch(
            inputs=prompts, generation_config=config, progress_bar=False
        )
        took = time.perf_counter() - began
        assert all(len(one.generated_tokens) == count for one in found.values())
        return took

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], count: int) -> float:
        ids = torch.tensor(prompts, device=self._device)
        began = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - began


_NO_INFO = ModelInfo(
    name="", path="", backend="native", backend_version="", architecture="", quantization="",
    parameters=0, size_bytes=0, context=2048, trained_context=2048, vocab_size=0,
    kv_bytes_per_token=0, kv_type="", threads=0, batch_threads=0, gpu_layers=0, load_s=0.0,
    has_chat_template=False, template_sha256="",
)  # fmt: skip


def write_model(folder: Path, shape: str, dtype: torch.dtype) -> None:
    """A checkpoint with random weights."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[shape], eos_token_id=None, bos_token_id=None)
    transformers.Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)


def compare(
    name: str, unit: float, ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> None:
    """Both in turns, and a line of what was found."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(their / our for our, their in pairs)
    print(
        f"| {name:<14} | {unit / mine:>9.1f} | {unit / other:>12.1f} | {ratio:>6.2f} |", flush=True
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="decoded by each session")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tests", default="prefill,decode1,decode8,batcher8")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    device, dtype = best_device(), DTYPES[options.dtype]
    count, rounds = options.tokens, options.rounds
    kind = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(
        f"{kind}, {os.cpu_count()} CPUs, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {options.shape} {options.dtype}, {datetime.date.today()}, "
        f"medians of {rounds}\n"
    )
    print("| test           | ours tok/s | transformers | ratio  |")
    print("|----------------|-----------:|-------------:|-------:|")
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder = Path(name)
        write_model(folder, options.shape, dtype)
        ours, theirs = Ours(folder, dtype, device), Theirs(folder, dtype, device)
        vocabulary = SHAPES[options.shape]["vocab_size"]
        draw = torch.Generator().manual_seed(1)

        def prompts(sessions: int, length: int) -> list[list[int]]:
            drawn = torch.randint(0, vocabulary, (sessions, length), generator=draw)
            return [list(map(int, row)) for row in drawn.tolist()]

        for test in options.tests.split(","):
            if test == "prefill":
                compare(
                    f"prefill {PROMPT}",
                    PROMPT,
                    lambda: ours.prefill(prompts(1, PROMPT)[0]),
                    lambda: theirs.prefill(prompts(1, PROMPT)[0]),
                    rounds,
                )
            elif test.startswith("decode"):
                n = int(test.removeprefix("decode"))
                compare(
                    f"decode × {n}",
                    n * count,
                    lambda n=n: ours.decode(prompts(n, SHORT), count),
                    lambda n=n: theirs.decode(prompts(n, SHORT), count),
                    rounds,
                )
            else:
                n = int(test.removeprefix("batcher"))
                compare(
                    f"batcher × {n}",
                    n * count,
                    lambda n=n: ours.whole(prompts(n, SHORT), count),
                    lambda n=n: theirs.batcher(prompts(n, SHORT), count),
                    rounds,
                )


if __name__ == "__main__":
    main()
