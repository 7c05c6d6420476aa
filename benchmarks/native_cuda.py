"""The native runner on an NVIDIA card: by a kernel for block tables and by gathering pages, and
then beside transformers. Run by `make gpu`.

    python benchmarks/native_cuda.py [--rounds 3] [--tokens 64] [--shape qwen3-0.6b] [--dtype bf16]
        [--results FILE]

Weights are random, of a real model's shape. Ratios are medians over rounds in which both sides take
turns; over 1 the first one is faster.

- first table: prefill, tokens a second of one prompt until its first token; decode × n, tokens a
  second of n sessions behind prompts of 512 tokens.
- second table: see native_beside_transformers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Final, TextIO
from unittest.mock import patch

import torch
import transformers
from native_beside_transformers import (
    DTYPES,
    PROMPT,
    SHAPES,
    Ours,
    Prompts,
    Theirs,
    compare,
    compare_all,
    described,
    write_model,
)

from hearth.backends.native import load
from hearth.backends.native.varlen_attention import has_varlen

SESSIONS: Final = (1, 8, 32)
LONG: Final = 1536
"""Tokens of the longer prompt; a session may have 2,048."""
BESIDE: Final = "prefill,decode1,decode8,decode32,batcher8,sized8"


def compare_attentions(
    read: Ours, gathered: Ours, prompts: Prompts, count: int, rounds: int
) -> None:
    """A table of both ways to read the pages."""
    print("| test           | with table |     gathered | ratio  |")
    print("|----------------|-----------:|-------------:|-------:|")
    for length in (PROMPT, LONG):
        compare(
            f"prefill {length}",
            length,
            lambda length=length: read.prefill(prompts(1, length)[0]),
            lambda length=length: gathered.prefill(prompts(1, length)[0]),
            rounds,
        )
    for n in SESSIONS:
        compare(
            f"decode × {n}",
            n * count,
            lambda n=n: read.decode(prompts(n, PROMPT), count),
            lambda n=n: gathered.decode(prompts(n, PROMPT), count),
            rounds,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="decoded by each session")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--results", type=Path, help="what is printed, line by line")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no NVIDIA card here: there is nothing to measure.")
    if options.results is None:
        measure(options)
        return
    with (
        options.results.open("w", encoding="utf-8") as file,
        contextlib.redirect_stdout(Both(sys.stdout, file)),
    ):
        measure(options)


class Both(io.TextIOBase):
    """Writes to two files, and keeps nothing back."""

    def __init__(self, *files: TextIO) -> None:
        self._files = files

    def write(self, text: str) -> int:
        for file in self._files:
            file.write(text)
            file.flush()
        return len(text)


def measure(options: argparse.Namespace) -> None:
    """Print both tables."""
    transformers.logging.set_verbosity_error()
    device, dtype = torch.device("cuda", torch.cuda.current_device()), DTYPES[options.dtype]
    prompts, most = Prompts(options.shape), max(SESSIONS)
    print(f"{described(options.shape, options.dtype, options.rounds)}\n")
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder = Path(name)
        write_model(folder, options.shape, dtype)
        ours = Ours(folder, dtype, device, sessions=most)
        if has_varlen(device, dtype):
            # No setting asks for it: where there is a kernel, it is taken.
            with patch.object(load, "has_varlen", return_value=False):
                gathered = Ours(folder, dtype, device, sessions=most)
            compare_attentions(ours, gathered, prompts, options.tokens, options.rounds)
            del gathered
        else:
            print(f"torch {torch.__version__} reads no block tables here: pages are gathered.")
        print()
        theirs = Theirs(folder, dtype, device)
        compare_all(ours, theirs, prompts, BESIDE, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
