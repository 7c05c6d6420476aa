"""One client sends bodies that are far too large, in a closed loop; another sends small requests.

    python benchmarks/starvation.py --model FILE [--context 2048 131072] [--runs 3] [--json FILE]

`hearth serve` runs in its own home. The victim sends 40 small chat requests one after the other,
first alone, then while an attacker keeps 4 connections busy with one kind of body: 2 MB of text,
10 MB of text, or 249,000 token ids. Both come from 127.0.0.1 and send no `user`. The attacker runs
in its own process and counts the statuses it gets.

The requirements, for every context and kind of body: all 40 requests of every run are answered with
200, and the median over the runs of (p95 under attack / p95 alone) is at most 3. The exit code is 1
if one is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
WORDS = "the model reads tokens and a fox tells stories about stars rivers bread and old clocks"
KINDS = ("2 MB", "10 MB", "249,000 ids")
CONNECTIONS = 4
REQUESTS = 40
MOST_RATIO = 3.0
MODEL = "victim"


def attack_body(kind: str) -> tuple[str, bytes]:
    """Path and JSON body of the attacker's request."""
    rng = random.Random(1)
    if kind == "249,000 ids":
        ids = [rng.randrange(1000, 40_000) for _ in range(249_000)]
        return "/v1/completions", json.dumps({"model": MODEL, "prompt": ids}).encode()
    most = 2_000_000 if kind == "2 MB" else (10 << 20) - 200
    text = " ".join(rng.choices(WORDS.split(), k=most // 4))[:most]
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return "/v1/chat/completions", json.dumps(body).encode()


def small_body(index: int) -> bytes:
    """One of the victim's requests."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{index}: what is a token?"}],
        "max_tokens": 16,
        "temperature": 0,
    }
    return json.dumps(body).encode()


class Client:
    """One connection, kept open as long as the server keeps it."""

    def __init__(self, port: int, agent: str) -> None:
        self._port = port
        self._agent = agent
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._open
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"User-Agent: {self._agent}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r")[0])
        content = await reader.readexactly(length)
        if b"connection: close" in answer:
            writer.close()
            self._open = None
        return int(answer.split()[1]), content


async def attack(port: int, kind: str, agent: str) -> None:
    """Send the same body over every connection until stdin ends; print the statuses."""
    path, body = attack_body(kind)
    statuses: Counter[int] = Counter()
    examples: dict[int, str] = {}

    async def loop() -> None:
        client = Client(port, agent)
        while True:
            status, content = await client.post(path, body)
            statuses[status] += 1
            examples.setdefault(status, content[:300].decode(errors="replace"))
            if len(statuses) == 1 and statuses[status] == 1:
                print("attacking", flush=True)

    loops = [asyncio.create_task(loop()) for _ in range(CONNECTIONS)]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait({*loops, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {ended}:
        task.result()
    print(json.dumps({"statuses": statuses, "examples": examples}), flush=True)
    os._exit(0)


@dataclass(frozen=True)
class Run:
    """What the victim measured."""

    p95_ms: float
    median_ms: float
    statuses: dict[int, int]


async def victim(port: int, agent: str) -> Run:
    """Send 40 small requests, one after the other."""
    client = Client(port, agent)
    took_ms: list[float] = []
    statuses: Counter[int] = Counter()
    for index in range(REQUESTS):
        began = time.perf_counter()
        status, _ = await client.post("/v1/chat/completions", small_body(index))
        took_ms.append(1000 * (time.perf_counter() - began))
        statuses[status] += 1
    took_ms.sort()
    p95_ms = took_ms[round(0.95 * REQUESTS) - 1]
    return Run(p95_ms, statistics.median(took_ms), dict(statuses))


@dataclass(frozen=True)
class Case:
    """One run with one kind of body."""

    context: int
    kind: str
    alone: Run
    attacked: Run
    attacker: dict[str, Any]
    rss_mib: dict[str, float]
    """Resident memory of each process after the attack."""

    @property
    def ratio(self) -> float:
        """p95 under attack divided by p95 alone."""
        return self.attacked.p95_ms / self.alone.p95_ms


def measure(server: Any, context: int, kind: str, agents: tuple[str, str]) -> Case:
    """Measure the victim alone, then under attack."""
    asyncio.run(victim(server.port, agents[1]))  # Loads and warms up the model.
    alone = asyncio.run(victim(server.port, agents[1]))
    command = [sys.executable, __file__, "--attack", str(server.port), kind, agents[0]]
    attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert attacker.stdout is not None
    assert attacker.stdout.readline() == "attacking\n"
    attacked = asyncio.run(victim(server.port, agents[1]))
    said, _ = attacker.communicate(timeout=120)
    processes = [psutil.Process(server.process.pid), server.host, *server.host.children()]
    names = ("serve", "host", *(f"worker {index}" for index in range(len(processes) - 2)))
    rss = {
        name: process.memory_info().rss / 2**20
        for name, process in zip(names, processes, strict=True)
    }
    return Case(context, kind, alone, attacked, json.loads(said), rss)


def show(case: Case) -> None:
    alone, attacked = case.alone, case.attacked
    print(
        f"{case.context:7} | {case.kind:11} | alone p95 {alone.p95_ms:7.0f} ms | attacked p95"
        f" {attacked.p95_ms:7.0f} ms, median {attacked.median_ms:6.0f} | {case.ratio:5.2f} |"
        f" victim {attacked.statuses} | attacker {case.attacker['statuses']} | RSS MiB "
        + ", ".join(f"{name} {mib:.0f}" for name, mib in case.rss_mib.items()),
        flush=True,
    )


def main() -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file that can chat")
    parser.add_argument("--context", type=int, nargs="+", default=[2048, 131072])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--same-agent", action="store_true", help="both send the same User-Agent: one identity"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        port, kind, agent = args.attack
        asyncio.run(attack(int(port), kind, agent))
    sys.path.insert(0, str(SUPPORT))
    from served import served

    agents = ("client/1", "client/1") if args.same_agent else ("attacker/1", "victim/1")
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {os.cpu_count()} cores, {datetime.date.today()}")
    cases: list[Case] = []
    for context in args.context:
        settings = {"HEARTH_CONTEXT": str(context), "HEARTH_KEEP_ALIVE_S": "-1"}
        with served(settings, {MODEL: args.model}) as server:
            for kind in args.kind:
                for _ in range(args.runs):
                    cases.append(measure(server, context, kind, agents))
                    show(cases[-1])
    missed = 0
    for context in args.context:
        for kind in args.kind:
            runs = [case for case in cases if (case.context, case.kind) == (context, kind)]
            ratio = statistics.median(case.ratio for case in runs)
            answered = all(case.attacked.statuses == {200: REQUESTS} for case in runs)
            is_met = answered and ratio <= MOST_RATIO
            missed += not is_met
            verdict = "met" if is_met else "MISSED"
            print(f"{context:7} | {kind:11} | median ratio {ratio:5.2f} | {verdict}")
    if args.json:
        args.json.write_text(json.dumps([asdict(case) for case in cases], indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
