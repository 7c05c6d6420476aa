"""The cost of Python in a step of the llama.cpp runner, compared with a bare ctypes loop.

    python benchmarks/llamacpp_step.py [--model FILE.gguf] [--steps 60] [--json RESULT.json]

Both decode the same tokens at the same positions with the same settings, in alternating rounds of
one run. "C" is the time inside `llama_decode`, "Python" the rest of a step; times are medians.
Without --model a random 100M-parameter Q8_0 llama with a vocabulary of 32,000 is written to a
temporary folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from interference import random_model

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.llamacpp.lib import load_library
from hearth.backends.llamacpp.load import open_model

SESSIONS = (1, 4)
CONTEXT = 1024
ROUNDS = 6


class RawLoop:
    """One-token steps through the C interface: numpy views of a llama_batch, and the logits of each
    row as a view."""

    def __init__(self, path: Path, sessions: int, threads: int) -> None:
        self.api = api = load_library().api
        self.model = api.llama_model_load_from_file(
            str(path).encode(), api.llama_model_default_params()
        )
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = CONTEXT * sessions, 512, sessions
        params.kv_unified, params.n_outputs_max = True, sessions
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, params)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(sessions, 0, 1)
        shape = (sessions,)
        self.tokens = np.ctypeslib.as_array(self.batch.token, shape)
        self.positions = np.ctypeslib.as_array(self.batch.pos, shape)
        np.ctypeslib.as_array(self.batch.n_seq_id, shape)[:] = 1
        np.ctypeslib.as_array(self.batch.logits, shape)[:] = 1
        for slot in range(sessions):
            self.batch.seq_id[slot][0] = slot
        self.batch.n_tokens = sessions
        self.decode_s = 0.0

    def step(self, tokens: list[int], position: int) -> None:
        self.tokens[:] = tokens
        self.positions[:] = position
        before = time.perf_counter()
        code = self.api.llama_decode(self.context, self.batch)
        self.decode_s = time.perf_counter() - before
        if code:
            raise SystemExit(f"llama_decode returned {code}")
        for index in range(len(tokens)):
            pointer = self.api.llama_get_logits_ith(self.context, index)
            np.ctypeslib.as_array(pointer, (self.vocab_size,))

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


class RunnerLoop:
    """The same steps through `CachedRunner.advance`."""

    def __init__(self, path: Path, sessions: int, threads: int) -> None:
        settings = ModelSettings(
            context=CONTEXT, max_sessions=sessions, threads=threads, batch_threads=threads
        )
        self.runner = open_model(ModelSpec(str(path), settings=settings)).runner
        self.decode_s = 0.0
        self.cached = CachedRunner(self.runner)
        for slot in range(sessions):
            self.cached.kv.reserve(slot, CONTEXT)
        context = self.runner.store.context
        context.decode = self._timed(context.decode)  # type: ignore[method-assign]

    def step(self, tokens: list[int], position: int) -> None:
        rows = tuple(Row(slot, position, [token], 1) for slot, token in enumerate(tokens))
        self.cached.advance(StepPlan(rows))

    def close(self) -> None:
        self.runner.close()

    def _timed(self, decode: Callable[[Any], int]) -> Callable[[Any], int]:
        def timed(batch: Any) -> int:
            before = time.perf_counter()
            code = decode(batch)
            self.decode_s = time.perf_counter() - before
            return code

        return timed


def measure(path: Path, sessions: int, steps: int, threads: int) -> dict[str, dict[str, float]]:
    """Median microseconds per step of each loop: total, in C, and in Python."""
    loops: dict[str, RawLoop | RunnerLoop] = {
        "raw": RawLoop(path, sessions, threads),
        "runner": RunnerLoop(path, sessions, threads),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    per_round = steps // ROUNDS
    tokens = [7 + slot for slot in range(sessions)]
    for turn in range(ROUNDS):
        for name, loop in loops.items():
            for at in range(turn * per_round, (turn + 1) * per_round):
                before = time.perf_counter()
                loop.step(tokens, at)
                times[name].append((time.perf_counter() - before, loop.decode_s))
    for loop in loops.values():
        loop.close()
    return {name: summary(pairs) for name, pairs in times.items()}


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "step_us": statistics.median(total for total, _ in pairs) * 1e6,
        "c_us": statistics.median(inside for _, inside in pairs) * 1e6,
        "python_us": statistics.median(total - inside for total, inside in pairs) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; a random one by default")
    parser.add_argument("--steps", type=int, default=60, help="decode steps of each loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        path = arguments.model or random_model(Path(folder))
        results = {
            sessions: measure(path, sessions, arguments.steps, arguments.threads)
            for sessions in SESSIONS
        }
    print(f"{path.name}, {arguments.threads} thread(s), {platform.machine()}, median µs a step")
    print("sessions  loop      step       C    Python  Python share  step / raw step")
    for sessions, loops in results.items():
        for name, found in loops.items():
            share = found["python_us"] / found["step_us"]
            ratio = found["step_us"] / loops["raw"]["step_us"]
            print(
                f"{sessions:8}  {name:6} {found['step_us']:8.0f} {found['c_us']:8.0f}"
                f" {found['python_us']:8.1f} {share:13.2%} {ratio:16.3f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": path.name, "sessions": results}, indent=2))


if __name__ == "__main__":
    main()
