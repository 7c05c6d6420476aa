"""The cost of the endpoint itself: HTTP, host, worker, scheduler around a model that takes no time.

    python benchmarks/endpoint.py [--streams 64] [--tokens 512] [--requests 2000] [--json FILE]
    python benchmarks/endpoint.py --before CHECKOUT [--rounds 15] [--streams 64] [--tokens 256]

`hearth serve`, its host and a worker run as usual, each in its own process; only the runner in the
worker is a fake, whose steps compute nothing or last a given time. It measures

- added latency: the time of a request for one token beyond a step of 10 ms, with one request at a
  time and with eight;
- throughput: tokens per second of many concurrent streams, with one event per token, and the
  processor time of every process per token. The client reads and counts in its own process.

With `--before`, the endpoint of another checkout (its own copy of this script, its own packages,
this Python) runs next to this one, and both get the same streams and requests in alternating
rounds. Reported are the processor time of a token and of a request before and after: the median
over the rounds of "after" divided by "before" with its quartiles, and the first deciles of both.
Other load on the machine affects both, and can only add to the times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import paired
import psutil
from overload import message

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
STEP_S = 0.010
WAKING_S = 0.0005
WARM_UP = 20
"""Requests sent before those whose latency counts."""
COMPARED = 400
"""Requests per round with `--before`: with 80, the worker varied from 0.95 to 1.10 of itself."""
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


# ---- the roles of this file that replace Hearth's own processes


def host_role(arguments: list[str]) -> None:
    """The real host, with `worker_role` as its workers."""
    from hearth.backends.host import host, worker_process

    async def spawn(self: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--role", "worker"),
            *("--parent", str(os.getpid()), "--cache", str(self._place.cache_dir)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    worker_process.WorkerProcess._spawn = spawn
    sys.argv = ["host", *arguments]
    host.main()


def worker_role(arguments: list[str]) -> None:
    """The real worker, with a runner that computes nothing."""
    from hearth.backends.machine.process import die_with_parent, take_private_pipes

    die_with_parent(int(arguments[arguments.index("--parent") + 1]))
    pipes = take_private_pipes()
    from hearth.backends.worker import worker

    worker.open_model = open_fake
    sys.argv = ["worker", *arguments]
    worker.main(*pipes)


def last(seconds: float) -> None:
    """Take exactly this time: sleeping alone ends a fifth of a millisecond late, which would be
    counted as the endpoint's latency. Other threads run meanwhile, as they do while a model
    computes.
    """
    until = time.perf_counter() + seconds
    time.sleep(max(seconds - WAKING_S, 0.0))
    while time.perf_counter() < until:
        time.sleep(0)


def open_fake(spec: Any, cache_dir: Path) -> Any:
    """A `Loaded` model with bytes as tokens, which always generates "x"."""
    sys.path.insert(0, str(SUPPORT))
    import numpy as np

    from fake_host import INFO
    from fake_runner import FakeRunner
    from fake_store import FakeStore
    from hearth.backends.contract.loaded import ModelInfo
    from hearth.backends.engine.loaded_model import Loaded
    from hearth.backends.engine.runner import StepPlan, StepResult
    from hearth.backends.text.chat_templates import DEFAULT

    step_s = float(os.environ["HEARTH_BENCH_STEP_S"])

    class Store(FakeStore):
        """Sequences that store nothing but their names, so that every operation succeeds."""

        def intact(self, sequence: int, held: int, tokens: int) -> bool:
            return True

        def share(self, source: int, target: int, tokens: int) -> None:
            pass

        def cut(self, sequence: int, tokens: int) -> bool:
            return True

        def shrink(self, cells: int) -> None:
            pass

        def save(self, sequence: int) -> None:
            return None

    class Instant(FakeRunner):
        def __init__(self) -> None:
            super().__init__(vocab=256, context=4096, pool=1 << 20, slots=64, chunk=512)
            self.store = Store(64, 1 << 20)
            self.limits = replace(self.limits, kept_tokens=0)
            self.info = replace(
                self.info, can_roll_back=False
            )  # No drafts: the fake has logits of one row only.
            self._row = np.zeros((1, 256), dtype=np.float32)
            self._row[0, ord("x")] = 1.0

        def step(self, plan: StepPlan) -> StepResult:
            logits = {}
            for row in plan.rows:
                if row.outputs:
                    logits[row.slot] = self._row
            if step_s:
                last(step_s)
            return StepResult(logits)

    class Bytes:
        vocab_size, bos_text, eos_text, infill_ids = 256, "", "", None
        control_tokens = named_tokens = MappingProxyType({})

        def encode(self, text: str, **_: Any) -> list[int]:
            return list(text.encode())

        def piece(self, token_id: int, *, special: bool = False) -> bytes:
            return bytes([token_id])

        def decode(self, ids: Any, *, special: bool = True) -> str:
            return bytes(ids).decode(errors="replace")

    info = ModelInfo(**{**INFO, "name": spec.name, "path": spec.path, "context": 4096})
    return Loaded(Instant(), Bytes(), info, {DEFAULT: TEMPLATE})


# ---- the client


@dataclass
class Latency:
    """Milliseconds beyond the step."""

    clients: int
    requests: int
    p50_ms: float
    p99_ms: float


@dataclass
class Throughput:
    streams: int
    tokens: int
    tok_per_s: float
    us_per_token: dict[str, float]
    """Processor time of each process."""


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "fake",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


async def measure_latency(port: int, clients: int, requests: int) -> Latency:
    """Latency of requests for one token each, over connections that stay open."""
    ask = message(port, "/v1/chat/completions", body(1, stream=False))
    took: list[float] = []

    async def client(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            began = time.perf_counter()
            writer.write(ask)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            took.append(1000 * (time.perf_counter() - began - STEP_S))
        writer.close()

    await client(WARM_UP)
    took.clear()
    await asyncio.gather(*(client(requests // clients) for _ in range(clients)))
    took.sort()
    return Latency(clients, len(took), statistics.median(took), took[int(0.99 * len(took))])


async def read_streams(port: int, streams: int, tokens: int) -> float:
    """Seconds for all streams; fails unless every stream has all its tokens and its end."""
    ask = message(port, "/v1/chat/completions", body(tokens, stream=True))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask)
        found, tail = 0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            assert piece, f"the stream was cut: {tail!r}"
            joined = tail + piece
            found += joined.count(b'"content":"x"') - tail.count(b'"content":"x"')
            tail = joined[-64:]
        assert found == tokens, (found, tokens)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(streams)))
    return time.perf_counter() - began


# ---- the measurements


def processor_s(pid: int) -> float:
    """Seconds that the threads of a process have run, to the nanosecond where Linux counts it."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    except OSError:
        spent = psutil.Process(pid).cpu_times()
        return spent.user + spent.system


class Running:
    """A host and an endpoint in a separate folder."""

    def __init__(self, step_s: float, checkout: Path | None = None) -> None:
        """Args: checkout: the checkout that the endpoint comes from; None: this one."""
        sys.path.insert(0, str(SUPPORT))
        from gguf_builder import tiny_llama

        self._folder = tempfile.TemporaryDirectory(prefix="hearth-bench-")
        home = Path(self._folder.name)
        script = str((checkout or SUPPORT.parent.parent) / "benchmarks" / "endpoint.py")
        environment = {
            **(os.environ if checkout is None else paired.environment(checkout, home / "links")),
            "HEARTH_HOME": str(home),
            "HEARTH_BENCH_STEP_S": str(step_s),
            "HEARTH_MAX_SESSIONS": "64",
        }
        if checkout is None:
            # The fake computes no keys and values that could be written to disk.
            environment["HEARTH_KV_DISK_BUDGET"] = "0"
        from hearth.app.paths import find_paths

        place = find_paths(environment).host_place()
        model = tiny_llama(home / "fake.gguf")
        folders = [place.runtime_dir, place.log_dir, place.cache_dir]
        names = ("--runtime", "--logs", "--cache")
        where = [str(item) for pair in zip(names, folders, strict=True) for item in pair]
        command = [sys.executable, script, "--role", "host", *where, "--idle", "30"]
        self._host = subprocess.Popen(command, env=environment)
        for _ in range(200):
            if Path(place.address).exists():
                break
            time.sleep(0.05)
        command = [sys.executable, "-m", "hearth.app.cli.main", "serve", str(model), "--port", "0"]
        self._serve = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._serve.stdout is not None
        url = self._serve.stdout.readline().decode().strip()
        self.port = int(url.split(":")[2].split("/")[0])

    def processor_s(self) -> dict[str, float]:
        """Processor seconds of each process so far."""
        host = psutil.Process(self._host.pid)
        found = {"serve": self._serve.pid, "host": host.pid}
        workers = [one for one in host.children() if "worker" in one.cmdline()]
        found |= {"worker": workers[0].pid} if workers else {}
        return {name: processor_s(pid) for name, pid in found.items()}

    def close(self) -> None:
        self._serve.send_signal(signal.SIGINT)
        self._serve.wait(timeout=30)
        self._host.send_signal(signal.SIGTERM)
        self._host.wait(timeout=30)
        self._folder.cleanup()


def latency(requests: int) -> list[Latency]:
    running = Running(STEP_S)
    try:
        return [asyncio.run(measure_latency(running.port, clients, requests)) for clients in (1, 8)]
    finally:
        running.close()


def throughput(running: Running, streams: int, tokens: int) -> Throughput:
    before = running.processor_s()
    own = time.process_time()
    took_s = asyncio.run(read_streams(running.port, streams, tokens))
    own = time.process_time() - own
    spent = {name: now - before[name] for name, now in running.processor_s().items()}
    total = streams * tokens
    shares = {name: 1e6 * s / total for name, s in {**spent, "client": own}.items()}
    return Throughput(streams, total, total / took_s, shares)


def request_us(running: Running, requests: int) -> dict[str, float]:
    """Processor time of a request for one token, by process."""
    before = running.processor_s()
    asyncio.run(measure_latency(running.port, 4, requests))
    spent = {name: now - before[name] for name, now in running.processor_s().items()}
    return {name: 1e6 * s / (requests + WARM_UP) for name, s in spent.items()}


def compare(before: Path, rounds: int, streams: int, tokens: int) -> None:
    """Print processor time by process, before and after, and the medians of their ratios."""
    with ExitStack() as stack:
        sides = [stack.enter_context(closing(Running(0.0, side))) for side in (before, None)]
        for side in sides:
            asyncio.run(read_streams(side.port, 4, 64))
        token: tuple[list[dict[str, float]], ...] = ([], [])
        request: tuple[list[dict[str, float]], ...] = ([], [])
        for number in range(rounds):
            for at in (0, 1) if number % 2 == 0 else (1, 0):
                token[at].append(throughput(sides[at], streams, tokens).us_per_token)
                request[at].append(request_us(sides[at], COMPARED))
    print(f"{rounds} rounds of {streams} streams, {streams * tokens:,} tokens\n")
    print("| µs of processor time | before | after | ratio of rounds | least disturbed |")
    print("|---|---|---|---|---|")
    for what, found in (("a token", token), ("a request for one", request)):
        for names in (("serve",), ("host",), ("serve", "host"), ("worker",)):
            old, new = ([sum(one[name] for name in names) for one in side] for side in found)
            print(f"| {what}: {' and '.join(names)} | {_compared(old, new)} |")


def _compared(old: list[float], new: list[float]) -> str:
    """Both medians, the median of the ratios with its quartiles, and the first deciles."""
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    least = [statistics.quantiles(side, n=10, method="inclusive")[0] for side in (old, new)]
    return (
        f"{statistics.median(old):.2f} | {statistics.median(new):.2f}"
        f" | {middle:.3f} ({low:.3f} to {high:.3f})"
        f" | {least[0]:.2f} → {least[1]:.2f} ({least[1] / least[0]:.3f})"
    )


def main() -> int:
    if "--role" in sys.argv:
        at = sys.argv.index("--role")
        roles = {"host": host_role, "worker": worker_role}
        roles[sys.argv[at + 1]](sys.argv[at + 2 :])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout to compare this one with")
    parser.add_argument("--rounds", type=int, default=15, help="with --before; two or more")
    args = parser.parse_args()
    if args.before is not None:
        compare(args.before.resolve(), args.rounds, args.streams, args.tokens)
        return 0
    with closing(Running(0.0)) as running:
        asyncio.run(read_streams(running.port, 4, 64))
        made = throughput(running, args.streams, args.tokens)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"{made.streams} streams, {made.tokens:,} tokens: {made.tok_per_s:,.0f} tokens/s")
    for name, share in made.us_per_token.items():
        print(f"  {name:8} {share:6.1f} µs of processor time a token")
    found = latency(args.requests) if args.requests else []
    for row in found:
        print(
            f"added latency, {row.clients} at a time, {row.requests} requests: "
            f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms"
        )
    if args.json:
        rows = [asdict(row) for row in found]
        args.json.write_text(json.dumps({"throughput": asdict(made), "latency": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
