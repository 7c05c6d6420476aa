"""Steps of the native runner while other programs compute.

    python benchmarks/busy_steps.py MODEL.gguf [--busy 0 1 2] [--spins 3000 300000]
        [--sessions 1 8]

For each number of busy processes and each GOMP_SPINCOUNT: milliseconds of wall time for prompts of
110 tokens, and for decode steps (mean, median, longest). Each row is measured in its own process,
with as many threads as there are cores; with `--pace` the runner chooses the number of threads, as
it does when none is set.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

PROMPT: Final = 110
BUSY: Final = "while True: pass"


def measure(model: str, sessions: int, steps: int, *, pace: bool) -> str:
    """Measure one row in this process and return its cells."""
    import numpy as np

    from hearth.backends.contract.models import ModelSettings, ModelSpec
    from hearth.backends.contract.sampling import SamplingParams
    from hearth.backends.engine.engine import Engine
    from hearth.backends.engine.generation import Generation, Limits
    from hearth.backends.engine.sampler import Sampler
    from hearth.backends.worker.runners import open_model

    threads = None if pace else os.cpu_count()
    settings = ModelSettings(
        context=2048, max_sessions=sessions, threads=threads, batch_threads=threads
    )
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(ModelSpec(model, backend="native", settings=settings), Path(cache))
    limits = Limits(steps, 0, True, frozenset())
    rng = np.random.default_rng(0)

    def ask() -> tuple[float, list[float]]:
        engine, made = Engine(loaded.runner), []
        for ident in range(sessions):
            prompt = rng.integers(0, loaded.runner.info.vocab_size, PROMPT).tolist()
            sampler = Sampler(SamplingParams(temperature=0.0), prompt_ids=prompt)
            piece = loaded.tokenizer.piece
            made.append(Generation(ident, prompt, sampler, limits, (), piece, lambda _: None))
        began = time.perf_counter()
        engine.submit(*made)
        while not all(one.new_tokens for one in made):
            engine.run_once()
        prompts_s, took = time.perf_counter() - began, []
        while not all(one.done for one in made):
            began = time.perf_counter()
            engine.run_once()
            took.append(time.perf_counter() - began)
        return prompts_s, took

    ask()
    prompts_s, took = ask()
    figures = (prompts_s, statistics.mean(took), statistics.median(took), max(took))
    return " | ".join(f"{1000 * seconds:.1f}" for seconds in figures)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--spins", type=int, nargs="+", default=[3000, 300_000])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pace", action="store_true")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is not None:
        print(measure(args.model, args.row, args.steps, pace=args.pace))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, ", end="")
    print(f"{datetime.date.today().isoformat()}\n")
    print("| busy | sessions | spins | prompts | a step | median | longest |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in args.busy:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        try:
            for sessions in args.sessions:
                for spins in args.spins:
                    command = [sys.executable, *sys.argv, "--row", str(sessions)]
                    env = os.environ | {"GOMP_SPINCOUNT": str(spins)}
                    told = subprocess.run(command, env=env, capture_output=True, text=True)
                    cells = told.stdout.strip() or told.stderr[-200:]
                    print(f"| {count} | {sessions} | {spins:,} | {cells} |", flush=True)
        finally:
            for one in busy:
                one.kill()


if __name__ == "__main__":
    main()
