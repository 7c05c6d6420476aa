"""Hearth's endpoint compared with llama-server, alternating, on the same model and requests.

    python benchmarks/beside_llama_server.py --server build/bin/llama-server --model MODEL.gguf
        [--rounds 5] [--cases steady burst arrivals shared long] [--clients 1 4 8 16] [--bursts 2]
        [--busy 0] [--json RESULT.json]

Both servers are restarted for every round, because some processes are a few percent slower than
others during their whole life. Each case goes to one server and then to the other, in an order that
changes from round to round, and no prompt is sent twice. Both get the same context, 16 sessions,
and as many threads as there are processors. Prompts have about 100 tokens and answers 48, except
where the case says otherwise:

    steady    N clients, four requests each, the next as soon as the last one has ended
    burst     N clients that start together on an idle server, one request each; --bursts a round
    arrivals  32 requests at random times, at 50 and 80 % of the rate that llama-server reached in
              the steady case of the most clients of the same round
    shared    8 clients whose prompts begin with the same 340 tokens, one request each
    long      one client with two prompts of about 2,200 tokens and 192 generated ones

With --busy, that number of other processes compute meanwhile. A ratio is Hearth's figure divided by
llama-server's; reported are the median over the pairs, the lowest and the highest. docs/bench.md
explains how to build llama-server from llama-cpp-python's own source package.
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

from hearth.app.load_test import Load, Served, Target, arrive, drive, first_model

CONTEXT = 4096
SESSIONS = 16
GEN_TOKENS = 48
ARRIVALS = 32
RATES = (0.5, 0.8)
KINDS = ("steady", "burst", "arrivals", "shared", "long")
SHARED_WORDS = 300
"""About 340 tokens with the template, in the vocabularies of Qwen and Llama."""


@dataclass(frozen=True)
class Case:
    """The load that both servers get.

    Attributes:
        share: arrival rate of the requests as a share of llama-server's saturated rate; 0:
            `clients` send them, each its next one as soon as the previous one has ended.
    """

    name: str
    clients: int
    load: Load
    share: float = 0.0
    repeats: int = 1


@dataclass
class Results:
    """The results of both servers for one case, in pairs."""

    case: str
    hearth: list[Served] = field(default_factory=list)
    llama_server: list[Served] = field(default_factory=list)

    def ratios(self, name: str) -> list[float]:
        pairs = zip(self.hearth, self.llama_server, strict=True)
        return [getattr(ours, name) / getattr(theirs, name) for ours, theirs in pairs]


def middle(served: list[Served], name: str) -> float:
    return statistics.median(getattr(one, name) for one in served)


def cases(kinds: list[str], clients: list[int], bursts: int) -> list[Case]:
    """The cases of `kinds`; the steady case with the most clients comes before arrivals."""
    found = []
    if "steady" in kinds or "arrivals" in kinds:
        wanted = clients if "steady" in kinds else [max(clients)]
        found += [Case(f"steady, {count}", count, plain(4 * count)) for count in sorted(wanted)]
    if "burst" in kinds:
        found += [Case(f"burst of {count}", count, plain(count), 0.0, bursts) for count in clients]
    if "arrivals" in kinds:
        found += [Case(f"arrivals, {share:.0%}", 0, plain(ARRIVALS), share) for share in RATES]
    if "shared" in kinds:
        load = Load(8, SHARED_WORDS + 20, GEN_TOKENS, shared_words=SHARED_WORDS, ignore_eos=True)
        found.append(Case("8, 340 tokens shared", 8, load))
    if "long" in kinds:
        found.append(Case("1, 2,200 tokens", 1, Load(2, 2000, 192, ignore_eos=True)))
    return found


def plain(requests: int) -> Load:
    return Load(requests, 90, GEN_TOKENS, ignore_eos=True)


class Running:
    """A server in a child process, with its output in a file."""

    def __init__(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        self.base = f"http://127.0.0.1:{port}/v1"
        self._health = f"http://127.0.0.1:{port}/health"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **environment}
            )

    def wait(self) -> None:
        """Wait until the server is healthy."""
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


@contextlib.contextmanager
def servers(server: str, model: Path, threads: int | None = None) -> Iterator[dict[str, Running]]:
    """Hearth and, if `server` is given, llama-server, with the same flags where both have them.

    Args:
        threads: None for one per processor.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hearth-bench-") as name,
        contextlib.ExitStack() as stopping,
    ):
        folder = Path(name)
        running = {"hearth": start_hearth(model, folder, threads)}
        stopping.callback(unload, folder)
        stopping.callback(running["hearth"].stop)
        if server:
            running["llama-server"] = start_llama_server(server, model, folder, threads)
            stopping.callback(running["llama-server"].stop)
        for one in running.values():
            one.wait()
        yield running


def start_llama_server(server: str, model: Path, folder: Path, threads: int | None) -> Running:
    given = str(threads or os.cpu_count())
    port = free_port()
    return Running(
        [
            *(server, "-m", str(model), "--port", str(port), "--host", "127.0.0.1"),
            *("-c", str(CONTEXT), "-np", str(SESSIONS), "--kv-unified"),
            *("-t", given, "-tb", given, "--no-webui"),
        ],
        port,
        folder / "llama-server.log",
    )


def start_hearth(model: Path, folder: Path, threads: int | None) -> Running:
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
    """End the workers, which would stay otherwise, and with them the host."""
    subprocess.run(
        [sys.executable, "-m", "hearth.app.cli.main", "stop", "--all"],
        env={**os.environ, "HEARTH_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextlib.contextmanager
def computing(processes: int) -> Iterator[None]:
    """Within the block, this number of other processes each use a processor."""
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
    """One round: run every case on both servers and add the results to `found`."""
    targets = {}
    for name, server in (("hearth", hearth), ("llama_server", llama_server)):
        targets[name] = Target(server.base, "chat", await first_model(server.base, ""))
        await drive(targets[name], Load(2, 50, 8, ignore_eos=True), 2, salt=1)
    saturated = 0.0
    for number, (case, results) in enumerate(zip(planned, found, strict=True), 1):
        order = ["hearth", "llama_server"]
        for repeat in range(case.repeats):
            salt = 10_000 * number + 100 * turn + repeat
            for name in order if (turn + repeat) % 2 == 0 else reversed(order):
                if case.share:
                    rate = case.share * saturated
                    served = await arrive(targets[name], case.load, rate, salt)
                else:
                    served = await drive(targets[name], case.load, case.clients, salt)
                if served.failed:
                    raise SystemExit(f"{name}: {served.errors}")
                getattr(results, name).append(served)
        if case.name.startswith("steady"):
            saturated = results.llama_server[-1].tok_per_s / GEN_TOKENS


FIGURES = {
    "tok/s": "tok_per_s",
    "TTFT p50, s": "ttft_p50_s",
    "TTFT p95, s": "ttft_p95_s",
    "ITL p50, s": "itl_p50_s",
}


def table(found: list[Results]) -> str:
    """A Markdown table: both medians of each case and figure, and the ratio with its range."""
    lines = ["| case | " + " | ".join(FIGURES) + " |", "|---" * (1 + len(FIGURES)) + "|"]
    for results in found:
        cells = [results.case]
        for name in FIGURES.values():
            ratios = results.ratios(name)
            cells.append(
                f"{middle(results.hearth, name):.2f}, {middle(results.llama_server, name):.2f}:"
                f" **{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=KINDS, default=list(KINDS[:4]))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--bursts", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {args.model.name}"
    )
    beside = f" beside {args.busy} busy processes" if args.busy else ""
    print(f"{args.rounds} rounds{beside}; Hearth, llama-server: their ratio (range)")
    planned = cases(args.cases, args.clients, args.bursts)
    found = [Results(case.name) for case in planned]
    for turn in range(args.rounds):
        with servers(args.server, args.model) as running, computing(args.busy):
            both = running["hearth"], running["llama-server"]
            asyncio.run(measure(turn, *both, planned, found))
        print(
            f"round {turn + 1}: "
            + ", ".join(
                f"{one.case} {one.hearth[-1].tok_per_s:.2f} {one.llama_server[-1].tok_per_s:.2f}"
                for one in found
            ),
            flush=True,
        )
    print(table(found), flush=True)
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
