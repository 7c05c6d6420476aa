"""Mutated requests to every route of a real server: none may fail on the server's side.

    python benchmarks/mutated_requests.py [--count 20000] [--seed 1] [--connections 4] [--index N]

`hearth serve` runs in its own home with the bundled model, and two others in the library folder;
clients may manage models, and the server is offline. Requests are made valid by the tables of the
routes, then damaged: types, ranges, names, nesting, encodings, JSON, methods, content types,
constraints; some clients disconnect in the middle of the answer. Answers have at most 16 tokens.

The requirements: no 500, 502 or 504; 503 only with Retry-After; headers at most 10 s after the last
byte of the body; JSON answers are JSON, and streams end with their last event or an error. The exit
code is 1 if one is not met; seed and number reproduce a request: `--index N` sends that one alone
and prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
SECOND = ROOT / "assets" / "guide" / "guide-draft.f16.gguf"


def show(outcome: Any) -> None:
    """Print the table of statuses, the slowest headers, and the violations."""
    families = sorted({family for family, _ in outcome.statuses})
    statuses = sorted({status for _, status in outcome.statuses})
    columns: Counter[int] = Counter()
    print("| route | " + " | ".join(map(str, statuses)) + " |")
    print("|---|" + "---:|" * len(statuses))
    for family in families:
        counts = [outcome.statuses[family, status] for status in statuses]
        columns.update(dict(zip(statuses, counts, strict=True)))
        if sum(counts) >= 10:
            print(f"| {family} | " + " | ".join(str(count or "") for count in counts) + " |")
    print("| all, others too | " + " | ".join(str(columns[status]) for status in statuses) + " |")
    print(f"\nclosed early by the client: {outcome.left}")
    print("slowest headers:")
    for one in outcome.slowest:
        print(f"  {one.headers_s:6.2f} s  {one.index} {one.asked.method} {one.asked.target[:60]}")
    print(f"headers later than 10 s: {len(outcome.late)}")
    print(f"violations: {len(outcome.violations)}")
    for one in outcome.violations[:50] + outcome.late[:50]:
        print(f"  {one.index} {one.asked.method} {one.asked.target[:80]}: {one.wrong or 'late'}")
        print(f"    {one.asked.body[:1500]!r}\n    {one.beginning!r}")


def main() -> int:
    """Send the requests, print the results, and compare them with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--index", type=int, help="send this request only, and print it")
    args = parser.parse_args()
    sys.path.insert(0, str(SUPPORT))
    import gguf

    from hostile_client import bombard
    from mutated import MANAGED, SETTINGS, request
    from served import served
    from tiny_rerankers import tiny_bert

    indices = range(args.first, args.first + args.count)
    if args.index is not None:
        indices = range(args.index, args.index + 1)
        print(request(args.seed, args.index))
    began = time.perf_counter()

    def progress(answered: Any, outcome: Any) -> None:
        if answered.wrong or answered.is_late:
            line = f"{answered.index}: {answered.headers_s:.1f} s {answered.wrong}"
            print(line, file=sys.stderr, flush=True)
        elif answered.index % 500 == 0:
            took = time.perf_counter() - began
            print(f"{answered.index}: {took:.0f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        ranker = Path(folder) / "ranker.gguf"
        tiny_bert(ranker, 512, head=1, pooling=gguf.PoolingType.RANK)
        models = {"second": SECOND, "ranker": ranker}
        with served(SETTINGS, models, MANAGED) as server:
            outcome = asyncio.run(
                bombard(server.port, args.seed, indices, args.connections, progress)
            )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(f"{os.cpu_count()} cores, load {load:.1f}, {datetime.date.today()}")
    print(f"{len(indices)} requests, seed {args.seed}, {time.perf_counter() - began:.0f} s\n")
    show(outcome)
    return 1 if outcome.violations or outcome.late else 0


if __name__ == "__main__":
    sys.exit(main())
