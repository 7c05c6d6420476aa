"""Processor time of the native runner's steps on one thread: a prompt of 512 tokens, and decoding.

    python benchmarks/step_cpu.py MODEL.gguf [--sessions 1 8 16] [--steps 16] [--behind 150]
        [--at-once 1] [--common]

A decode step has a token of each of several sessions, which have 150 tokens before it. Processor
time hardly depends on the other load of the machine. Tokens are random; milliseconds, the lowest of
four prompts and the median of the steps. `--at-once` is the number of tokens of each session in a
step, as with drafts; with `--common` the sessions share the pages of the earlier tokens.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.load import open_model
from hearth.backends.native.runner import NativeRunner

PROMPT: Final = 512


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--behind", type=int, default=150)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1])
    parser.add_argument("--common", action="store_true")
    asked = parser.parse_args()
    most = max(PROMPT, asked.behind + asked.steps * max(asked.at_once))
    settings = ModelSettings(
        context=max(1024, most),
        max_sessions=max(asked.sessions),
        threads=1,
        batch_threads=1,
        gpu_layers=0,
    )
    runner = open_model(ModelSpec(path=str(asked.model), settings=settings)).runner
    assert isinstance(runner, NativeRunner)
    rng = np.random.default_rng(0)
    page = runner.store.page
    blocks = -(-most // page)
    common = asked.behind // page if asked.common else 0
    with (
        torch.inference_mode()
    ):  # Written, since untouched pages are all one page of zeros in memory.
        for layer in range(len(runner.store.group_of)):
            for side in runner.store.layer(layer):
                side.fill_(1)
    runner.store.grow(0, blocks * max(asked.sessions))

    def row(slot: int, start: int, count: int) -> Row:
        tokens = tuple(int(token) for token in rng.integers(0, runner.info.vocab_size, count))
        handle = [[*range(common), *range(slot * blocks + common, (slot + 1) * blocks)]]
        return Row(slot=slot, start=start, tokens=tokens, outputs=1, handle=handle)

    def cpu_ms(rows: list[Row]) -> float:
        began = time.process_time()
        runner.step(StepPlan(tuple(rows)))
        return 1e3 * (time.process_time() - began)

    print("| step | ms | tokens/s |\n|---|---:|---:|")
    prompt = min(cpu_ms([row(0, 0, PROMPT)]) for _ in range(4))
    print(f"| {PROMPT} tokens | {prompt:.1f} | {1e3 * PROMPT / prompt:.1f} |")
    for sessions, count in itertools.product(asked.sessions, asked.at_once):
        taken = statistics.median(
            cpu_ms([row(slot, asked.behind + step * count, count) for slot in range(sessions)])
            for step in range(asked.steps)
        )
        what = f"{count} token{'s' * (count > 1)} × {sessions}"
        print(f"| {what} | {taken:.2f} | {1e3 * sessions * count / taken:.1f} |")
    runner.close()


if __name__ == "__main__":
    main()
