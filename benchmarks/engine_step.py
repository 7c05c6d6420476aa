"""The cost of a step without the model: processor time of an engine over a runner that computes
nothing, by the number of sequences in a step.

    python benchmarks/engine_step.py [--runs 5]

Each sequence has a prompt of 200 tokens and generates 400. Reported is the lowest of all runs, in
microseconds per step.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from hearth.backends.engine.engine import Engine
from hearth.backends.engine.runner import StepPlan, StepResult

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
COUNTS: Final = (1, 8, 16)
PROMPT: Final = 200
TOKENS: Final = 400
VOCAB: Final = 97


def step_us(sequences: int) -> float:
    """Microseconds of processor time per step."""
    from fake_runner import FakeRunner
    from speakers import drain, generation

    runner = FakeRunner(vocab=VOCAB, context=4096, pool=1 << 16, slots=16, chunk=512)
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 5] = 1.0

    def step(plan: StepPlan) -> StepResult:
        return StepResult({row.slot: logits for row in plan.rows if row.outputs})

    runner.step = step
    runner.store.make_room = lambda cells: None
    runner.store.shrink = lambda cells: None
    engine = Engine(runner)
    for ident in range(sequences):
        prompt = [(ident * 7 + at) % VOCAB for at in range(PROMPT)]
        made, _ = generation(ident, prompt, runner, tokens=TOKENS, ignore_eos=True)
        engine.submit(made)
    began = time.process_time()
    drain(engine, 100_000)
    return 1e6 * (time.process_time() - began) / engine.stats().steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.insert(0, str(SUPPORT))  # the tests' runner is not an installed package
    print("| sequences | µs a step |\n|---:|---:|")
    for count in COUNTS:
        least = min(step_us(count) for _ in range(arguments.runs))
        print(f"| {count} | {least:.0f} |")


if __name__ == "__main__":
    main()
