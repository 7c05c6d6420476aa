"""The native runner compared with llama.cpp on a processor, alternating, with the same GGUF.

    python benchmarks/native_beside_llamacpp.py --model MODEL.gguf [--sessions 1 8 16]
        [--prompt 128] [--rounds 3] [--json RESULT.json]

Both use Hearth's engine. Each round asks `hearth bench` for a prefill of 512 tokens, and for
sessions that decode 32 tokens at the same time after prompts of --prompt tokens, with one backend
and then the other. A ratio is the median of the ratios of the rounds, with the lowest and the
highest.
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


def measured(backend: str, model: Path, sessions: list[int], prompt: int) -> dict[str, float]:
    """Tokens/s of the engine, by test."""
    command = [
        *(sys.executable, "-m", "hearth.app.cli.main", "bench", str(model), "--backend", backend),
        *("--tests", "pp,sessions", "--sessions", ",".join(map(str, sessions))),
        *("--session-prompt", str(prompt), "--repeats", "1", "--json"),
    ]
    tests = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["tests"]
    return {test["test"]: test["engine_tok_per_s"]["median"] for test in tests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(asked.rounds):
        backends = ("native", "llamacpp") if turn % 2 == 0 else ("llamacpp", "native")
        for backend in backends:
            for test, speed in measured(backend, asked.model, asked.sessions, asked.prompt).items():
                found[test][backend].append(speed)
        print(f"round {turn + 1} done", file=sys.stderr, flush=True)
    print(f"{datetime.date.today()}, {platform.machine()}; {asked.model.name}; tokens/s, medians\n")
    print("| test | native | llama.cpp | native / llama.cpp |\n|---|---:|---:|---|")
    for test, sides in found.items():
        ratios = [a / b for a, b in zip(sides["native"], sides["llamacpp"], strict=True)]
        ours, theirs = (statistics.median(sides[one]) for one in ("native", "llamacpp"))
        middle = f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {test} | {ours:.1f} | {theirs:.1f} | {middle} |")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
