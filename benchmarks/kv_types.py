"""The cost and error of keys and values in Q8_0, compared with other types.

    python benchmarks/kv_types.py attention
    python benchmarks/kv_types.py speed MODEL [--depth 8192]
    python benchmarks/kv_types.py logits MODEL --text FILE [--tokens 512]

`attention` prints the relative error of attention by the type of keys and values, for random ones
and for random ones in which a few channels are larger. `speed` prints the CPU time of a decode step
of the native runner after `--depth` tokens of random keys and values, with one thread, each type
in turn, and the size of the pages. `logits` prints the divergence of the next token's distribution
from that of the same runner with keys and values in f32: for the native runner with exact products
(`--dtype f32`), and for llama.cpp. llama.cpp rounds activations to int8, so that any difference
grows to that of two roundings, and its flash attention converts f32 to f16.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.contract.models import BackendName, KvType, ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.kv_rows import Q8_0, from_rows, to_rows
from hearth.backends.native.runner import NativeRunner
from hearth.backends.worker.runners import open_model

TYPES: Final[tuple[tuple[KvType, KvType], ...]] = (
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("f16", "q8_0"),
    ("q8_0", "f16"),
)
ROW_TOKENS: Final = 4
"""Tokens per step of `logits`: few enough for attention to read all keys where they are stored."""


def per_head(numbers: Tensor) -> Tensor:
    """`numbers` rounded to int8 with one scale per token and head."""
    scale = numbers.abs().amax(-1, keepdim=True) / 127
    return (numbers / scale).round() * scale


def attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention output [queries, head_dim], in float64."""
    scores = query.double() @ keys.double().T * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ values.double()


def attention() -> None:
    """Print the errors of attention over random numbers."""
    generator = torch.Generator().manual_seed(1)
    stored = {
        "f16": lambda x: x.half().float(),
        "q8_0, a scale for 32": lambda x: from_rows(to_rows(x, Q8_0), torch.float32),
        "int8, a scale for a head": per_head,
    }
    print("| head_dim | larger channels | " + " | ".join(stored) + " |")
    print("|---:|---:|" + "---:|" * len(stored))
    for size in (64, 128):
        for larger in (0, 4):
            query, keys, values = (
                torch.randn(count, size, generator=generator) for count in (256, 1024, 1024)
            )
            keys[:, :larger] *= 20
            query[:, :larger] /= 20
            exact = attended(query, keys, values)
            errors = [
                float((attended(query, kept(keys), kept(values)) - exact).norm() / exact.norm())
                for kept in stored.values()
            ]
            print(f"| {size} | {larger} | " + " | ".join(f"{one:.5f}" for one in errors) + " |")


def loaded(
    path: Path,
    backend: BackendName,
    types: tuple[KvType, KvType],
    context: int,
    *,
    exact: bool = False,
) -> Loaded:
    """A model loaded with one thread; `exact`: activations are not rounded for products."""
    settings = ModelSettings(
        context=context,
        kv_type=types[0],
        kv_type_v=types[1],
        threads=1,
        batch_threads=1,
        max_sessions=1,
        flash_attention=True if backend == "llamacpp" else None,
        dtype="f32" if exact else None,
    )
    with TemporaryDirectory() as cache:
        return open_model(ModelSpec(str(path), backend=backend, settings=settings), Path(cache))


def speed(path: Path, depth: int, rounds: int) -> None:
    """Print the time of decode steps of the native runner."""
    runners: list[NativeRunner] = []
    for types in TYPES:
        runner = loaded(path, "native", types, depth + 64).runner
        assert isinstance(runner, NativeRunner)
        runners.append(runner)
    blocks = -(-(depth + 64) // 16)
    table = [int(one) for one in np.random.default_rng(0).permutation(blocks)]
    for runner in runners:
        store = runner.store
        with torch.inference_mode():
            for group in range(len(store.groups)):
                store.grow(group, blocks)
            for layer in range(len(store.group_of)):
                keys, _ = store.layer(layer)
                heads = runner.decoder.config.kv_heads, runner.decoder.config.head_dim
                slots = slice(0, blocks * 16)
                store.write(layer, slots, torch.randn(blocks * 16, 2, *heads))
                assert keys.shape[1] >= blocks
    times: list[list[float]] = [[] for _ in runners]
    for number in range(rounds + 1):
        for index, runner in enumerate(runners):
            handle = [table] * len(runner.store.groups)
            row = Row(0, depth + number % 32, (5,), 1, handle=handle)
            before = time.process_time()
            runner.step(StepPlan((row,)))
            if number:  # The first one is a warm-up.
                times[index].append(time.process_time() - before)
    print(f"{path.name}: a step behind {depth:,} tokens, median of {rounds}, least in brackets\n")
    print("| keys, values | ms of CPU time | of f16 | bytes a token | 32,768 tokens, MiB |")
    print("|---|---:|---:|---:|---:|")
    for types, runner, some in zip(TYPES, runners, times, strict=True):
        pairs = [ours / theirs for ours, theirs in zip(some, times[0], strict=True)]
        token = runner.info.kv_bytes_per_token
        print(
            f"| {', '.join(types)} | {1e3 * float(np.median(some)):.1f} ({1e3 * min(some):.1f}) | "
            f"{float(np.median(pairs)):.2f} | {token:,} | {token / 32:,.1f} |"
        )


def logits_of(
    path: Path, backend: BackendName, types: tuple[KvType, KvType], text: bytes, most: int
) -> NDArray[np.float64]:
    """Log probabilities [tokens, vocabulary]."""
    model = loaded(path, backend, types, most + 16, exact=backend == "native")
    tokens = model.tokenizer.encode(text.decode(), special=False, add_bos=True)[:most]
    cached = CachedRunner(model.runner)
    cached.kv.open(0, tokens)
    found = []
    for at in range(0, len(tokens), ROW_TOKENS):
        some = tokens[at : at + ROW_TOKENS]
        result = cached.advance(StepPlan((Row(0, at, some, len(some)),)))
        found.append(np.array(result.logits[0], dtype=np.float64))
    model.runner.close()
    rows = np.concatenate(found)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def logits(path: Path, text: bytes, most: int) -> None:
    """Print the divergence of the next-token distributions."""
    print("| runner | keys, values | mean KL, nats | largest | same most probable token |")
    print("|---|---|---:|---:|---:|")
    backends: tuple[BackendName, ...] = ("native", "llamacpp")
    for backend in backends:
        exact = logits_of(path, backend, ("f32", "f32"), text, most)
        for types in TYPES:
            found = logits_of(path, backend, types, text, most)
            divergence = (np.exp(exact) * (exact - found)).sum(-1)
            same = (exact.argmax(-1) == found.argmax(-1)).mean()
            print(
                f"| {backend} | {', '.join(types)} | {divergence.mean():.2e} | "
                f"{divergence.max():.2e} | {same:.2%} |",
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("attention", "speed", "logits"))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, "
        f"{datetime.date.today()}\n"
    )
    if options.what == "attention":
        attention()
    elif options.model is None or (options.what == "logits" and options.text is None):
        parser.error("a model is needed, and a text for logits")
    elif options.what == "speed":
        speed(options.model, options.depth, options.rounds)
    else:
        logits(options.model, options.text.read_bytes(), options.tokens)


if __name__ == "__main__":
    main()
