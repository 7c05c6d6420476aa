"""Hearth's engine compared with llama-batched-bench, alternating, on the same model and flags.

    python benchmarks/beside_batched_bench.py --bench build/bin/llama-batched-bench
        --model MODEL.gguf [--sessions 1 8 16] [--rounds 5] [--json RESULT.json]

Decodes 64 tokens in each of several sessions at the same time, after prompts of 128 tokens, with
`hearth bench` and with llama.cpp's own tool: the same context, batch and threads, one unified pool.
`hearth bench` also measures its raw loop over the C interface in the same process, which shows how
much of a difference is due to the engine. A ratio is the median of the ratios of the rounds, with
the lowest and the highest. docs/bench.md explains how to build llama-server; llama-batched-bench is
built in the same way.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 128
GEN_TOKENS = 64


def engine(model: Path, sessions: list[int]) -> tuple[dict[int, float], dict[int, float], Any]:
    """Tokens/s of the engine and of the raw loop by number of sessions, and the setup."""
    command = [
        *(sys.executable, "-m", "hearth.app.cli.main", "bench", str(model), "--backend"),
        *("llamacpp", "--tests", "sessions", "--sessions", ",".join(map(str, sessions))),
        *("--session-prompt", str(PROMPT_TOKENS), "--session-gen", str(GEN_TOKENS)),
        *("--repeats", "1", "--json"),
    ]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    ours = {test["sessions"]: test["engine_tok_per_s"]["median"] for test in found["tests"]}
    raw = {test["sessions"]: test["beside_tok_per_s"]["raw"]["median"] for test in found["tests"]}
    return ours, raw, found["setup"]


def batched_bench(program: str, model: Path, sessions: list[int], setup: Any) -> dict[int, float]:
    """Tokens/s of llama-batched-bench by number of sessions."""
    info = setup["info"]
    command = [
        *(program, "-m", str(model), "-c", str(setup["pool_tokens"]), "-kvu"),
        *("-b", str(setup["batch"]), "-ub", str(setup["ubatch"])),
        *("-t", str(info["threads"]), "-tb", str(info["batch_threads"])),
        *("-ctk", info["kv_type"], "-ctv", info["kv_type"], "-ngl", str(info["gpu_layers"])),
        *("-npp", str(PROMPT_TOKENS), "-ntg", str(GEN_TOKENS)),
        *("-npl", ",".join(map(str, sessions)), "--output-format", "jsonl"),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["pl"]: row["speed_tg"] for row in rows}


def spread(values: list[float]) -> str:
    return f"**{statistics.median(values):.3f}** ({min(values):.3f} to {max(values):.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="llama-batched-bench")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    setup = engine(args.model, args.sessions)[2]  # Not counted: this run reads the files.
    for turn in range(args.rounds):
        if turn % 2:
            theirs = batched_bench(args.bench, args.model, args.sessions, setup)
        ours, raw, _ = engine(args.model, args.sessions)
        if turn % 2 == 0:
            theirs = batched_bench(args.bench, args.model, args.sessions, setup)
        for count in args.sessions:
            sides = {"engine": ours, "raw": raw, "batched-bench": theirs}
            for name, side in sides.items():
                found[count][name].append(side[count])
        print(f"round {turn + 1}: {ours} {raw} {theirs}", file=sys.stderr, flush=True)
    print(f"{platform.machine()}; {args.model.name}; {args.rounds} rounds; tokens/s, medians\n")
    print("| sessions | engine | raw loop | batched-bench | engine / batched | raw / batched |")
    print("|---:|---:|---:|---:|---|---|")
    for count, sides in found.items():
        middles = (f"{statistics.median(values):.1f}" for values in sides.values())
        ratios = [
            spread([a / b for a, b in zip(sides[name], sides["batched-bench"], strict=True)])
            for name in ("engine", "raw")
        ]
        print(f"| {count} | " + " | ".join((*middles, *ratios)) + " |")
    if args.json:
        document = {"date": datetime.date.today().isoformat(), "setup": setup, "tests": found}
        args.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
