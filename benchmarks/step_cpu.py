"""Processor time of the native runner's steps on one thread: a prompt of 512 tokens, and single
tokens of some sessions behind 150 others. It hardly depends on what else the machine does.

    python benchmarks/step_cpu.py MODEL.gguf [--sessions 1 8 16] [--steps 16]

Tokens are random; milliseconds, the least of four prompts and the median of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.load import open_model
from hearth.backends.native.runner import NativeRunner

PROMPT: Final = 512
START: Final = 150


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--steps", type=int, default=16)
    asked = parser.parse_args()
    settings = ModelSettings(
        context=1024, max_sessions=max(asked.sessions), threads=1, batch_threads=1, gpu_layers=0
    )
    runner = open_model(ModelSpec(path=str(asked.model), settings=settings)).runner
    assert isinstance(runner, NativeRunner)
    rng = np.random.default_rng(0)
    page = runner.store.page
    blocks = -(-max(PROMPT, START + asked.steps) // page)
    runner.store.grow(0, blocks * max(asked.sessions))

    def row(slot: int, start: int, count: int) -> Row:
        tokens = tuple(int(token) for token in rng.integers(0, runner.info.vocab_size, count))
        handle = [list(range(slot * blocks, (slot + 1) * blocks))]
        return Row(slot=slot, start=start, tokens=tokens, outputs=1, handle=handle)

    def cpu_ms(rows: list[Row]) -> float:
        began = time.process_time()
        runner.step(StepPlan(tuple(rows)))
        return 1e3 * (time.process_time() - began)

    print("| step | ms | tokens/s |\n|---|---:|---:|")
    prompt = min(cpu_ms([row(0, 0, PROMPT)]) for _ in range(4))
    print(f"| {PROMPT} tokens | {prompt:.1f} | {1e3 * PROMPT / prompt:.1f} |")
    for sessions in asked.sessions:
        taken = statistics.median(
            cpu_ms([row(slot, START + step, 1) for slot in range(sessions)])
            for step in range(asked.steps)
        )
        print(f"| 1 token × {sessions} | {taken:.2f} | {1e3 * sessions / taken:.1f} |")
    runner.close()


if __name__ == "__main__":
    main()
