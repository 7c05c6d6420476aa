"""The cost of a step in which some sequences decode while another's prompt is computed.

    python benchmarks/mixed_steps.py --model MODEL.gguf [--threads 2]

Milliseconds of the fastest of three steps, with flash attention: by the number of sequences that
decode after 110 tokens each, and by the total number of tokens in the step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.machine.threads import usable_threads
from hearth.backends.worker.runners import open_model

DEPTH: Final = 110
DECODING: Final = (0, 1, 3, 7)
TOKENS: Final = (13, 16, 32, 48, 64)
TOKEN: Final = 1000


def step_ms(cached: CachedRunner, decoding: int, tokens: int) -> float:
    """Milliseconds of a step of `tokens` tokens, one each for sequences 0 to `decoding` - 1."""
    times = []
    for _ in range(3):
        rows = [Row(slot, DEPTH, [TOKEN], 1) for slot in range(decoding)]
        cached.kv.open(7, [])
        cached.kv.reserve(7, tokens)
        rows.append(Row(7, 0, [TOKEN] * (tokens - decoding), 0))
        before = time.perf_counter()
        cached.step(StepPlan(tuple(rows)))
        times.append(1000 * (time.perf_counter() - before))
        for row in rows:
            cached.kv.undo(row.slot, len(row.tokens))
        cached.kv.release(7, keep=False)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=usable_threads())
    args = parser.parse_args()
    settings = ModelSettings(
        context=1024,
        max_sessions=8,
        threads=args.threads,
        batch_threads=args.threads,
        flash_attention=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        runner = open_model(ModelSpec(str(args.model), settings=settings), Path(folder)).runner
    cached = CachedRunner(runner)
    try:
        for slot in range(7):
            cached.kv.open(slot, [])
            cached.kv.reserve(slot, 2 * DEPTH)
            cached.advance(StepPlan((Row(slot, 0, [TOKEN + slot] * DEPTH, 0),)))
        print("| decoding | " + " | ".join(f"{tokens} tokens" for tokens in TOKENS) + " |")
        print("|---" * (len(TOKENS) + 1) + "|")
        for decoding in DECODING:
            took = [f"{step_ms(cached, decoding, tokens):.0f}" for tokens in TOKENS]
            print(f"| {decoding} | " + " | ".join(took) + " |", flush=True)
    finally:
        runner.close()


if __name__ == "__main__":
    main()
