"""Ten times more load than the engine holds: how refusals, accepted requests and memory behave.

    python benchmarks/overload.py [--seconds 60] [--clients 120] [--pause 0.8] [--json FILE]

`hearth serve guide` with four sessions and eight places to wait, in its own home. Its clients send
the next request as soon as they have an answer, or, when refused, after a random pause, which is
shorter than `Retry-After` demands. The ratio of the requests that came to those that could be
answered is printed. A refusal is timed from its request's first byte to its answer's last.

The requirements: refusals p99 under 50 ms, every one with `Retry-After`; every accepted request
answered to its end; no process grows by 5 % after the first quarter; within 5 s of the end a
request takes as long as before. The exit code is 1 if one is not met.
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
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
SETTINGS = {"HEARTH_MAX_SESSIONS": "4", "HEARTH_MAX_WAITING": "8", "HEARTH_KEEP_ALIVE_S": "-1"}
WORDS = "the model reads tokens and a fox tells stories about stars rivers bread and old clocks"
END = b"0\r\n\r\n"
MOST_REFUSAL_MS = 50.0
MOST_GROWTH = 0.05
MOST_RECOVERY_S = 5.0
AS_FAST = 1.5
"""A request that takes at most this many times the median from before counts as fast again."""
CANARIES = 20


@dataclass
class Counts:
    """What the clients received."""

    refused_ms: list[float] = field(default_factory=list)
    accepted_s: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    unfinished: int = 0
    """Requests that were accepted, then cut off or failed."""
    others: dict[str, int] = field(default_factory=dict)
    """Other answers, by status."""


@dataclass(frozen=True)
class Report:
    """Everything that is printed."""

    offered_per_s: float
    accepted_per_s: float
    refused: int
    refused_p50_ms: float
    refused_p99_ms: float
    refused_max_ms: float
    without_retry_after: int
    accepted: int
    unfinished: int
    others: dict[str, int]
    rss_mib: dict[str, list[float]]
    """Resident memory of each process at each quarter."""
    recovery_s: float
    recovery_ratio: float
    """Time of the first fast request, divided by the median from before."""
    cores_elsewhere: float
    """Cores that other programs used meanwhile: unless this is near 0, the times mean little."""

    @property
    def growth(self) -> dict[str, float]:
        """Memory growth of each process after the first quarter."""
        return {name: rss[-1] / rss[0] - 1 for name, rss in self.rss_mib.items()}

    def missed(self) -> Iterator[str]:
        """The bars that were missed."""
        if self.refused_p99_ms >= MOST_REFUSAL_MS:
            yield f"refusals take {self.refused_p99_ms:.1f} ms at p99"
        if self.without_retry_after:
            yield f"{self.without_retry_after} refusals without Retry-After"
        if self.unfinished or self.others:
            yield f"{self.unfinished} accepted requests did not finish; others: {self.others}"
        for name, growth in self.growth.items():
            if growth >= MOST_GROWTH:
                yield f"{name} grew by {growth:.1%}"
        if self.recovery_s >= MOST_RECOVERY_S:
            yield f"it took {self.recovery_s:.1f} s to recover"


# ---- a client


def request(port: int, rng: random.Random) -> bytes:
    """A random small request."""
    text = " ".join(rng.choices(WORDS.split(), k=rng.randint(3, 40)))
    tokens, stream = rng.randint(8, 48), rng.random() < 0.5
    path, body = rng.choice(
        (
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": text}], "max_tokens": tokens},
            ),
            ("/v1/completions", {"prompt": text, "max_tokens": tokens}),
            (
                "/v1/messages",
                {"messages": [{"role": "user", "content": text}], "max_tokens": tokens},
            ),
        )
    )
    return message(port, path, {**body, "model": "guide", "stream": stream})


def message(port: int, path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes
) -> tuple[int, bytes, bool]:
    """Status, head in lower case, and whether the answer was complete."""
    writer.write(question)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    try:
        if b"transfer-encoding: chunked" in head:
            await reader.readuntil(END)
        else:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return int(head.split()[1]), head, False
    return int(head.split()[1]), head, True


async def client(port: int, seed: int, until: float, pause_s: float, counts: Counts) -> None:
    """Send requests in a loop until `until`."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    await asyncio.sleep(rng.random() * pause_s)
    while time.perf_counter() < until:
        question = request(port, rng)
        began = time.perf_counter()
        status, head, is_whole = await ask(reader, writer, question)
        took_s = time.perf_counter() - began
        if status == 429:
            counts.refused_ms.append(1000 * took_s)
            counts.without_retry_after += b"\r\nretry-after: " not in head
            await asyncio.sleep(rng.random() * pause_s)
        elif status == 200:
            counts.accepted_s.append(took_s)
            counts.unfinished += not is_whole
        else:
            counts.others[str(status)] = counts.others.get(str(status), 0) + 1
        if not is_whole or b"connection: close" in head:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.close()


async def canary_s(port: int) -> float:
    """Seconds for a small request over a new connection; nan if it is refused."""
    body = {
        "model": "guide",
        "prompt": "Once upon a time",
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    status, _, is_whole = await ask(reader, writer, message(port, "/v1/completions", body))
    writer.close()
    assert is_whole and status in (200, 429), status
    return time.perf_counter() - began if status == 200 else float("nan")


# ---- the measurements


def busy_s(processes: dict[str, psutil.Process]) -> float:
    """Processor seconds used on this machine by programs other than `processes` and this one."""
    spent = psutil.cpu_times()
    ours = [*(one.cpu_times() for one in processes.values()), psutil.Process().cpu_times()]
    return sum(spent) - spent.idle - spent.iowait - sum(one.user + one.system for one in ours)


def resident_mib(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: one.memory_info().rss / 2**20 for name, one in processes.items()}


async def measure(
    port: int, processes: dict[str, psutil.Process], clients: int, seconds: float, pause_s: float
) -> Report:
    """Run the load, and measure the recovery after it."""
    await canary_s(port)
    before_s = statistics.median([await canary_s(port) for _ in range(CANARIES)])
    counts = Counts()
    others_s = busy_s(processes)
    began = time.perf_counter()
    until = began + seconds
    load = [
        asyncio.create_task(client(port, seed, until, pause_s, counts)) for seed in range(clients)
    ]
    rss: dict[str, list[float]] = {name: [] for name in processes}
    for quarter in range(1, 5):
        await asyncio.sleep(began + seconds * quarter / 4 - time.perf_counter())
        for name, mib in resident_mib(processes).items():
            rss[name].append(round(mib, 1))
    ended = time.perf_counter()
    others_s = busy_s(processes) - others_s
    took_s = await canary_s(port)
    while not took_s <= AS_FAST * before_s and time.perf_counter() - ended < 60:
        await asyncio.sleep(0.05)
        took_s = await canary_s(port)
    recovery_s = time.perf_counter() - ended
    await asyncio.gather(*load)
    refused = sorted(counts.refused_ms)
    total = len(refused) + len(counts.accepted_s) + sum(counts.others.values())
    return Report(
        total / seconds,
        len(counts.accepted_s) / seconds,
        len(refused),
        statistics.median(refused),
        refused[int(0.99 * len(refused))],
        refused[-1],
        counts.without_retry_after,
        len(counts.accepted_s),
        counts.unfinished,
        counts.others,
        rss,
        recovery_s,
        took_s / before_s,
        others_s / seconds,
    )


def run(clients: int, seconds: float, pause_s: float) -> Report:
    """Measure a separate server."""
    sys.path.insert(0, str(SUPPORT))
    from served import served

    with served(SETTINGS) as server:
        (worker,) = server.host.children()
        processes = {
            "serve": psutil.Process(server.process.pid),
            "host": server.host,
            "worker": worker,
        }
        return asyncio.run(measure(server.port, processes, clients, seconds, pause_s))


def print_report(report: Report, clients: int, seconds: float) -> None:
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {os.cpu_count()} cores, {datetime.date.today()}")
    ratio = report.offered_per_s / report.accepted_per_s if report.accepted_per_s else 0.0
    print(
        f"{clients} clients, {seconds:.0f} s: {report.offered_per_s:.0f} requests/s came, "
        f"{report.accepted_per_s:.1f}/s were accepted ({ratio:.1f} times as many came)"
    )
    print(
        f"refused: {report.refused}; p50 {report.refused_p50_ms:.1f} ms, "
        f"p99 {report.refused_p99_ms:.1f} ms, max {report.refused_max_ms:.1f} ms; "
        f"without Retry-After: {report.without_retry_after}"
    )
    print(
        f"accepted: {report.accepted}; not finished: {report.unfinished}; "
        f"other answers: {report.others or 'none'}"
    )
    for name, rss in report.rss_mib.items():
        shown = ", ".join(f"{mib:.1f}" for mib in rss)
        print(f"RSS of {name:6} at each quarter: {shown} MiB ({report.growth[name]:+.1%})")
    print(f"other programs kept {report.cores_elsewhere:.2f} cores busy meanwhile")
    print(
        f"after the end: as fast as before within {report.recovery_s:.2f} s "
        f"({report.recovery_ratio:.2f} times the median from before)"
    )


def main() -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=120)
    parser.add_argument(
        "--pause", type=float, default=0.8, help="longest pause after a refusal, in seconds"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = run(args.clients, args.seconds, args.pause)
    print_report(report, args.clients, args.seconds)
    if args.json:
        args.json.write_text(json.dumps(asdict(report), indent=1))
    missed = list(report.missed())
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
