"""The native runner compared with transformers, on the same weights in the same run.

    python benchmarks/native_beside_transformers.py [--rounds 3] [--shape qwen3-0.6b] [--dtype bf16]
        [--device cuda]

Weights are random, in a real model's shape; `hearth bench FOLDER --reference transformers` makes a
similar comparison with a model's own weights. Each line is a ratio of medians over rounds in which
both sides alternate; over 1 is faster than transformers.

- prefill: one prompt of 512 tokens, its first token included; transformers' forward pass.
- decode × n: tokens a second of n sessions; transformers' `generate` with its default cache.
- batcher × 8: the same compared with transformers' continuous batching (`generate_batch`), prompts
  of both included; once with its defaults, and once with a cache that is no larger than needed,
  because its default cache takes most of the memory that is left, and has to be allocated.

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

from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.transformers_side import (
    BatchingSide,
    GenerateSide,
    TransformersModel,
    load_transformers,
)
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import Dtype, ModelSettings
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.native.load import choose_numbers
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import NativePlan, plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.weights import load_weights
from hearth.kernels.cuda.matrix import has_triton
from hearth.kernels.cuda.packings import has_graphs
from hearth.kernels.device import best_device, free_bytes
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder

PROMPT: Final = 512
SHORT: Final = 32
"""Length in tokens of the prompts before decoding is measured."""
DTYPES: Final[dict[Dtype, torch.dtype]] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}
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
    """Stands in for a tokenizer: no text is looked at."""

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The empty piece."""
        return b""


def engine_side(decoder: Decoder, plan: NativePlan) -> EngineSide:
    """A loaded decoder under the engine, as in a worker."""
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
    return EngineSide(Loaded(runner, _Speechless(), _NO_INFO, {}))  # type: ignore[arg-type]


class Ours:
    """The native runner under the engine."""

    def __init__(self, side: EngineSide) -> None:
        self._side = side

    @classmethod
    def of_folder(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Ours:
        fields = read_fields(folder / "config.json")
        family = family_of_hf(fields)
        config = family.from_hf(fields).for_context(2048)
        asked = next(name for name, one in DTYPES.items() if one == dtype)
        kv_type = "f32" if asked == "f32" else "f16"
        settings = ModelSettings(context=2048, dtype=asked, kv_type=kv_type)
        file, free = SafetensorsFolder(folder), free_bytes(device)
        numbers = choose_numbers(list(file.stored.values()), settings, device, free_bytes=free)
        plan = plan_memory(
            settings,
            config,
            device=device,
            dtype=numbers.dtype,
            compute_dtype=numbers.compute_dtype,
            weight_bytes=0,
            available_bytes=free,
            triton=has_triton(device.type),
            graphs=has_graphs() and device.type == "cuda",
        )
        decoder = Decoder(
            config, device, numbers.dtype, activations=numbers.compute_dtype, context=2048
        )
        load_weights(decoder, family, file, device, tiled=numbers.tiled, mapped=False)
        return cls(engine_side(decoder, plan))

    def prefill(self, prompt: list[int]) -> float:
        """Seconds until the first token."""
        took = self._side.prefill(prompt)
        self._side.clear()
        return took

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for `count` tokens of each session, after the prompts."""
        self._side.start(prompts, len(prompts[0]) + count + 8)
        took = self._side.decode(count)
        self._side.clear()
        return took

    def whole(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for the prompts and `count` tokens of each session."""
        began = time.perf_counter()
        self._side.start(prompts, len(prompts[0]) + count + 8)
        self._side.decode(count - 1)
        took = time.perf_counter() - began
        self._side.clear()
        return took


class Theirs:
    """transformers on the same weights."""

    def __init__(self, model: TransformersModel) -> None:
        self._generate, self._batching = GenerateSide(model), BatchingSide(model)

    @classmethod
    def of_folder(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Theirs:
        """The checkpoint in `folder`."""
        threads = torch.get_num_threads()
        return cls(
            load_transformers(
                folder, dtype=dtype, device=device, threads=threads, batch_threads=threads
            )
        )

    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one forward pass that computes the logits of the last token only."""
        return self._generate.prefill(prompt)

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """Seconds of `generate` for `count` tokens of each session, after the prompts."""
        self._generate.start(prompts, 0)
        took = self._generate.decode(count)
        self._generate.clear()
        return took

    def batcher(self, prompts: list[list[int]], count: int, *, is_sized: bool) -> float:
        """Seconds of `generate_batch` for the prompts and `count` tokens of each session."""
        return self._batching.whole(prompts, count, is_sized=is_sized)


_NO_INFO = ModelInfo(
    name="", path="", backend="native", backend_version="", architecture="", quantization="",
    parameters=0, size_bytes=0, context=2048, trained_context=2048, vocab_size=0,
    kv_bytes_per_token=0, kv_type="", threads=0, batch_threads=0, gpu_layers=0, load_s=0.0,
    has_chat_template=False, template_sha256="",
)  # fmt: skip


def write_model(folder: Path, shape: str, dtype: torch.dtype) -> None:
    """Write a checkpoint with random weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[shape], eos_token_id=None, bos_token_id=None)
    transformers.Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)


def described(shape: str, dtype: str, rounds: int) -> str:
    """The conditions of a table: machine, model and versions."""
    import transformers

    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return (
        f"{kind}, {os.cpu_count()} CPUs, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {shape} {dtype}, {datetime.date.today()}, "
        f"medians of {rounds}"
    )


class Prompts:
    """Random prompts, different ones each time."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._draw = torch.Generator().manual_seed(1)

    def __call__(self, sessions: int, length: int) -> list[list[int]]:
        """One prompt of `length` tokens for each session."""
        size = (sessions, length)
        drawn = torch.randint(0, self._vocabulary, size, generator=self._draw)
        return [list(map(int, row)) for row in drawn.tolist()]


def compare(
    name: str, unit: float, ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> None:
    """Run both sides in turns and print a line with the result."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(their / our for our, their in pairs)
    print(
        f"| {name:<14} | {unit / mine:>9.1f} | {unit / other:>12.1f} | {ratio:>6.2f} |", flush=True
    )


def compare_all(
    ours: Ours, theirs: Theirs, prompts: Prompts, tests: str, count: int, rounds: int
) -> None:
    """Print a table of `tests` (comma-separated names), with `count` tokens per session."""
    print("| test           | ours tok/s | transformers | ratio  |")
    print("|----------------|-----------:|-------------:|-------:|")
    for test in tests.split(","):
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
            is_sized = test.startswith("sized")
            n = int(test.removeprefix("sized").removeprefix("batcher"))
            compare(
                f"sized × {n}" if is_sized else f"batcher × {n}",
                n * count,
                lambda n=n: ours.whole(prompts(n, SHORT), count),
                lambda n=n, sized=is_sized: theirs.batcher(
                    prompts(n, SHORT), count, is_sized=sized
                ),
                rounds,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="decoded by each session")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--device", help="cpu, cuda or mps; the fastest by default")
    parser.add_argument("--tests", default="prefill,decode1,decode8,batcher8,sized8")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    device = torch.device(options.device) if options.device else best_device()
    dtype = DTYPES[options.dtype]
    print(f"{described(options.shape, options.dtype, options.rounds)}\n")
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder = Path(name)
        write_model(folder, options.shape, dtype)
        ours = Ours.of_folder(folder, dtype, device)
        theirs = Theirs.of_folder(folder, dtype, device)
        prompts = Prompts(SHAPES[options.shape]["vocab_size"])
        compare_all(ours, theirs, prompts, options.tests, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
