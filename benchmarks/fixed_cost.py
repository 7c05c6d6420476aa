"""The cost of a step of the native runner apart from arithmetic, with a model of 28 tiny layers.

    python benchmarks/fixed_cost.py [--steps 300]

The model has 28 layers of width 64 and a context of 16 tokens; a step lasts from its plan to the
token with the greatest logit of each row. Weights are Q8_0 and random. Milliseconds, median of the
steps; the same with the kernels for half layers left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native.load import open_model
from hearth.backends.native.runner import NativeRunner

TOOLS: Final = Path(__file__).resolve().parent.parent / "tools"
LAYERS: Final = 28
WIDTH: Final = 64
CONTEXT: Final = 16
SESSIONS: Final = (1, 8, 16)


def opened(folder: Path) -> NativeRunner:
    """A runner for a model of this shape."""
    from model_shapes import Shape
    from random_models import write_model

    shape = Shape(
        architecture="qwen3",
        layers=LAYERS,
        width=WIDTH,
        heads=4,
        kv_heads=2,
        head_length=16,
        feed_forward=2 * WIDTH,
        context=1024,
        rope_base=1e6,
        tied=True,
        head_norms=True,
    )
    path = write_model(shape, "q8_0", folder / "small.gguf", vocab="synthetic")
    settings = ModelSettings(context=256, max_sessions=max(SESSIONS), gpu_layers=0)
    runner = open_model(ModelSpec(path=str(path), settings=settings)).runner
    assert isinstance(runner, NativeRunner)
    return runner


def step_ms(runner: NativeRunner, sessions: int, steps: int) -> float:
    """Milliseconds per step with one token in each of `sessions` sessions."""
    blocks = -(-(CONTEXT + 1) // runner.store.page)
    runner.store.grow(0, blocks * sessions)
    rows = tuple(
        Row(
            slot=slot,
            start=CONTEXT,
            tokens=(slot,),
            outputs=1,
            handle=[list(range(slot * blocks, (slot + 1) * blocks))],
        )
        for slot in range(sessions)
    )
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        found = runner.step(StepPlan(rows))
        tokens = [int(found.logits[slot][-1].argmax()) for slot in range(sessions)]
        taken.append(time.perf_counter() - began)
        assert len(tokens) == sessions
    return 1e3 * statistics.median(taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    sys.path.insert(0, str(TOOLS))
    with tempfile.TemporaryDirectory() as folder:
        runner = opened(Path(folder))
        fused = runner.decoder.fused
        print(f"{torch.get_num_threads()} threads; half layers in C: {fused is not None}\n")
        print("| rows | ms a step | with torch's layers |\n|---:|---:|---:|")
        for sessions in SESSIONS:
            quick = step_ms(runner, sessions, steps)
            runner.decoder.fused = None
            slow = step_ms(runner, sessions, steps)
            runner.decoder.fused = fused
            print(f"| {sessions} | {quick:.2f} | {slow:.2f} |")
        runner.close()


if __name__ == "__main__":
    main()
