"""Hearth's endpoint beside llama-server, in turns, with the same model and the same requests.

    python benchmarks/beside_llama_server.py --server build/bin/llama-server --model MODEL.gguf
        [--rounds 5] [--clients 1 4 8] [--long] [--busy 0] [--json RESULT.json]

Both servers are started anew for every round: some processes are a few hundredths slower than
others from their start to their end. Each case goes to one and then to the other, who is first
changes from round to round, and no prompt comes twice. Both get the same context, as many sessions
as there are clients at most, and as many threads as there are processors. Cases: 1, 4 and 8 clients
with prompts of about 100 tokens and 48 generated ones, four times each; 8 clients whose prompts
begin with the same 340 tokens, once each; and with --long one client with two prompts of about
2,200 tokens and 192 generated ones. With --busy so many other processes compute meanwhile. Ratios
are Hearth's median by llama-server's; docs/bench.md says how to build that from llama-cpp-python's
own source package.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hearth.app.load_test import Load, Served, Target, drive, first_model

CONTEXT = 4096
SESSIONS = 8
SHARED_WORDS = 300
"""About 340 tokens with the template, in the vocabularies of Qwen and Llama."""


@dataclass(frozen=True)
class Case:
    name: str
    clients: int
    load: Load


@dataclass
class Results:
    """What both made of one case, a figure a round."""

    case: str
    hearth: list[Served] = field(default_factory=list)
    llama_server: list[Served] = field(default_factory=list)

    def ratio(self, name: str) -> float:
        return middle(self.hearth, name) / middle(self.llama_server, name)


def middle(served: list[Served], name: str) -> float:
    return statistics.median(getattr(one, name) for one in served)


def cases(clients: list[int], *, long: bool = False) -> list[Case]:
    plain = [
        Case(f"{count} clients", count, Load(4 * count, 90, 48, ignore_eos=True))
        for count in clients
    ]
    words = SHARED_WORDS + 20
    shared = Load(8, words, 48, shared_words=SHARED_WORDS, ignore_eos=True)
    found = [*plain, Case("8 clients, 340 tokens shared", 8, shared)]
    if long:
        found.append(Case("1 client, 2,200 tokens", 1, Load(2, 2000, 192, ignore_eos=True)))
    return found


class Running:
    """A server as a child process, with its output in a file."""

    def __init__(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        self.base = f"http://127.0.0.1:{port}/v1"
        self._health = f"http://127.0.0.1:{port}/health"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **environment}
            )

    def wait(self) -> None:
        """Until it is healthy."""
        for _ in range(600):
            if self._process.poll() is not None:
                raise SystemExit(f"{self.base} ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(self._health, timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"{self.base} is not healthy")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(
    server: str, model: Path, folder: Path, threads: int | None = None
) -> tuple[Running, Running]:
    """Both, with the same flags where both have them; `threads`: None for one per processor."""
    hearth = start_hearth(model, folder, threads)
    given = str(threads or os.cpu_count())
    port = free_port()
    llama_server = Running(
        [
            *(server, "-m", str(model), "--port", str(port), "--host", "127.0.0.1"),
            *("-c", str(CONTEXT), "-np", str(SESSIONS), "--kv-unified"),
            *("-t", given, "-tb", given, "--no-webui"),
        ],
        port,
        folder / "llama-server.log",
    )
    return hearth, llama_server


def start_hearth(model: Path, folder: Path, threads: int | None = None) -> Running:
    given = str(threads or os.cpu_count())
    port = free_port()
    return Running(
        [
            *(sys.executable, "-m", "hearth.app.cli.main", "serve", str(model)),
            *("--port", str(port), "--ctx", str(CONTEXT), "--max-sessions", str(SESSIONS)),
            *("--threads", given),
        ],
        port,
        folder / "hearth.log",
        HEARTH_HOME=str(folder),
        HEARTH_BATCH_THREADS=given,
        HEARTH_KEEP_ALIVE_S="-1",
    )


def unload(home: Path) -> None:
    """End the workers that stay otherwise, and with them the host."""
    subprocess.run(
        [sys.executable, "-m", "hearth.app.cli.main", "stop", "--all"],
        env={**os.environ, "HEARTH_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextlib.contextmanager
def computing(processes: int) -> Iterator[None]:
    """So many others want a processor each within the block."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


async def measure(
    turn: int, hearth: Running, llama_server: Running, planned: list[Case], found: list[Results]
) -> None:
    """One round: every case for both, added to what was `found`."""
    targets = {}
    for name, server in (("hearth", hearth), ("llama_server", llama_server)):
        targets[name] = Target(server.base, "chat", await first_model(server.base, ""))
        await drive(targets[name], Load(2, 50, 8, ignore_eos=True), 2, salt=1)
    for number, (case, results) in enumerate(zip(planned, found, strict=True), 1):
        order = ["hearth", "llama_server"]
        for name in order if turn % 2 == 0 else reversed(order):
            served = await drive(targets[name], case.load, case.clients, 1000 * number + turn)
            if served.failed:
                raise SystemExit(f"{name}: {served.errors}")
            getattr(results, name).append(served)


def line(results: Results) -> str:
    parts = [f"{results.case:30}"]
    for title, name in (
        ("tok/s", "tok_per_s"),
        ("TTFT p50", "ttft_p50_s"),
        ("ITL p50", "itl_p50_s"),
    ):
        ours, theirs = middle(results.hearth, name), middle(results.llama_server, name)
        parts.append(f"{title} {ours:7.2f} {theirs:7.2f} = {results.ratio(name):5.2f}")
    return "  ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {args.model.name}"
    )
    beside = f" beside {args.busy} busy processes" if args.busy else ""
    print(f"{args.rounds} rounds{beside}; hearth, llama-server and their ratio")
    planned = cases(args.clients, long=args.long)
    found = [Results(case.name) for case in planned]
    for turn in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
            hearth, llama_server = start(args.server, args.model, Path(folder))
            try:
                hearth.wait()
                llama_server.wait()
                with computing(args.busy):
                    asyncio.run(measure(turn, hearth, llama_server, planned, found))
            finally:
                hearth.stop()
                unload(Path(folder))
                llama_server.stop()
        print(
            f"round {turn + 1}: "
            + ", ".join(
                f"{one.case} {one.hearth[-1].tok_per_s:.2f} {one.llama_server[-1].tok_per_s:.2f}"
                for one in found
            ),
            flush=True,
        )
    for results in found:
        print(line(results), flush=True)
    if args.json:
        content = {
            "date": datetime.date.today().isoformat(),
            "model": args.model.name,
            "cases": [asdict(results) for results in found],
        }
        args.json.write_text(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
