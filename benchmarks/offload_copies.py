"""The cost of copying parts of prefixes out of llama.cpp's key-value memory, and back.

    python benchmarks/offload_copies.py --model MODEL.gguf [--tokens 256]

Milliseconds per part, the median of eight, and GB/s, with and without flash attention.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.llamacpp.load import open_model
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.machine.threads import usable_threads

PARTS: Final = 8
TOKEN: Final = 100


def times_ms(runner: LlamaRunner, tokens: int) -> tuple[list[float], list[float], int]:
    """Milliseconds of each part out and in, and the bytes of one part."""
    cached = CachedRunner(runner)
    cache, store = cached.kv, runner.store
    whole = PARTS * tokens
    cache.open(0, [TOKEN] * whole)
    cache.reserve(0, whole)
    step = runner.info.max_batch_tokens
    for start in range(0, whole, step):
        row = Row(0, start, [TOKEN] * min(step, whole - start), 0)
        cached.advance(StepPlan((row,)))
    out, back, states = [], [], []
    handle = cache.handle(0)
    assert isinstance(handle, int)
    for start in range(0, whole, tokens):
        before = time.perf_counter()
        states.append(store.save_part(handle, start, start + tokens))
        out.append(1000 * (time.perf_counter() - before))
    store.cut(handle, 0)
    for part, state in enumerate(states):
        assert state is not None
        before = time.perf_counter()
        start = part * tokens
        assert store.restore_part(handle, state, start, start + tokens)
        back.append(1000 * (time.perf_counter() - before))
    assert states[0] is not None
    return out, back, states[0].nbytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=usable_threads())
    args = parser.parse_args()
    print("| flash attention | MB a part | out, ms | GB/s | in, ms | GB/s |")
    print("|---|---|---|---|---|---|")
    for flash in (False, True):
        settings = ModelSettings(
            context=PARTS * args.tokens,
            max_sessions=2,
            threads=args.threads,
            batch_threads=args.threads,
            flash_attention=flash,
            kv_pool="static",
        )
        runner = open_model(ModelSpec(str(args.model), settings=settings)).runner
        if not isinstance(runner, LlamaRunner):
            raise SystemExit("An encoder has no key-value memory.")
        try:
            out, back, nbytes = times_ms(runner, args.tokens)
        finally:
            runner.close()
        cells = [f"{'on' if flash else 'off'} | {nbytes / 1e6:.1f}"]
        for times in (out, back):
            median = statistics.median(times)
            cells.append(f"{median:.1f} | {nbytes / 1e6 / median:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
