"""The cost of a step with a few rows after a long context, with both kinds of attention.

    python benchmarks/deep_rows.py --model MODEL.gguf [--depth 20000] [--threads 2]

Milliseconds of the fastest of four steps of llama.cpp itself, by the number of rows of the deep
sequence; "mixed" steps also have a row of a short sequence.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row
from hearth.backends.llamacpp.context import Batch, LlamaContext
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan, plan_context
from hearth.backends.machine.memory import available_bytes
from hearth.backends.machine.threads import usable_threads
from hearth.quant.gguf.reader import read_header

ROWS: Final = (1, 2, 9, 16, 47, 64)
SHORT: Final = 64
TOKEN: Final = 1000
ROUNDS: Final = 4


class Steps:
    """A context with `depth` tokens in sequence 0 and `SHORT` tokens in sequence 1."""

    def __init__(self, model: LlamaModel, plan: ContextPlan, depth: int, threads: int) -> None:
        self._depth = depth
        self._context = LlamaContext(model, plan, plan.context, threads, threads)
        self._batch = Batch(model.library.api, plan.batch)
        for start in range(0, depth, plan.batch):
            count = min(plan.batch, depth - start)
            self._decode([Row(0, start, [TOKEN + start % 97] * count, 0, handle=0)])
        self._decode([Row(1, 0, [TOKEN] * SHORT, 0, handle=1)])

    def ms(self, count: int, *, mixed: bool) -> float:
        """Milliseconds of the quickest step with `count` rows."""
        rows = [Row(0, self._depth, [TOKEN] * count, 1, handle=0)]
        if mixed:
            rows.append(Row(1, SHORT, [TOKEN], 1, handle=1))
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            self._decode(rows)
            times.append(1000 * (time.perf_counter() - began))
            for row in rows:
                self._context.remove(row.handle, row.start)
        return min(times)

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def _decode(self, rows: list[Row]) -> None:
        self._batch.fill(rows)
        code = self._context.decode(self._batch)
        assert code == 0, f"llama_decode gave {code}"
        self._context.logits(1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=usable_threads())
    args = parser.parse_args()
    model = LlamaModel.open(args.model)
    header = read_header(args.model)
    print("| attention | " + " | ".join(f"{count} rows" for count in ROWS) + " |")
    print("|---" * (len(ROWS) + 1) + "|")
    for flash in (True, False):
        settings = ModelSettings(context=args.depth + 256, max_sessions=2, flash_attention=flash)
        plan = plan_context(settings, header, weight_bytes=0, available_bytes=available_bytes())
        steps = Steps(model, replace(plan, sequences=4), args.depth, args.threads)
        for mixed in (False, True):
            took = [f"{steps.ms(count, mixed=mixed):.0f}" for count in ROWS]
            name = ("flash" if flash else "plain") + (", mixed" if mixed else "")
            print(f"| {name} | " + " | ".join(took) + " |", flush=True)
        steps.close()
    model.close()


if __name__ == "__main__":
    main()
