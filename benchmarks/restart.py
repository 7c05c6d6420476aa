"""Continuing a chat after `kill -9` of every process: the time until its first token.

    python benchmarks/restart.py --model MODEL.gguf [--backend llamacpp] [--tokens 6000] [--runs 3]

A chat of random tokens is computed; five seconds after its last token the host and the worker are
killed. Another host loads the model, and then the chat continues with 8 more tokens: once with its
files dropped from the page cache (`posix_fadvise`), and once with the files in it. Reported are
seconds from the request to the first token, the median of the runs, next to the time of prefilling
the chat, of reading its files through one buffer of 1 MiB, and of another such request after that,
when the chat is in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from hearth.backends.contract.events import Failed, Started, Token
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import from_info
from hearth.backends.host.client import HostClient, HostPlace

KILL_AFTER_S: Final = 5.0
NEW_TOKENS: Final = 8
MADE: Final = 4


async def first_token_s(
    client: HostClient, spec: ModelSpec, tokens: list[int]
) -> tuple[float, int]:
    """Seconds to the first token after `tokens`, and how many of `tokens` were cached."""
    request = Request(
        token_ids=tuple(tokens),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=MADE,
        ignore_eos=True,
    )
    began, first, cached = time.perf_counter(), 0.0, 0
    async for event in client.backend(spec, "chat").generate(request):
        if isinstance(event, Started):
            cached = event.cached_tokens
        elif isinstance(event, Token) and not first:
            first = time.perf_counter() - began
        elif isinstance(event, Failed):
            raise from_info(event.error)
    return first, cached


async def kill(client: HostClient) -> None:
    """End the host and the workers with SIGKILL, and wait until they are gone."""
    host = psutil.Process((await client.stats()).pid)
    processes = [host, *host.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=30)


def drop(files: list[Path]) -> None:
    """Drop `files` from the page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_s(files: list[Path]) -> float:
    """Seconds to read all of `files`."""
    buffer = memoryview(bytearray(1 << 20))
    began = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return time.perf_counter() - began


async def measure(
    place: HostPlace, spec: ModelSpec, tokens: int, runs: int, pause_s: float
) -> None:
    """Print the table."""
    draw = random.Random(1)
    chat = [draw.randrange(1000, 30000) for _ in range(tokens)]
    async with HostClient.attach(place, host_idle_s=60) as client:
        await client.backend(spec).info()
        prefill_s, _ = await first_token_s(client, spec, chat)
        await asyncio.sleep(KILL_AFTER_S)
        (worker,) = (await client.stats()).workers
        assert worker.engine is not None
        queued = worker.engine.disk_tokens
        await kill(client)
    files = sorted(place.cache_dir.glob("kv/*/*/*.kv"))
    nbytes = sum(file.stat().st_size for file in files)
    print(
        f"{queued:,} of {tokens:,} tokens on disk after {KILL_AFTER_S:.0f} s, {nbytes:,} bytes in"
    )
    print(f"{len(files)} files; prefilled in {prefill_s:.2f} s")
    print(
        f"\n{'':6}{'cached':>8}{'TTFT s':>8}{'read s':>8}{'held s':>8}"
        f"{'/ prefill':>11}{'/ read':>8}"
    )
    for state in ("cold", "warm"):
        found, first, read, held = [], [], [], []
        for _ in range(runs):
            drop(files)
            if state == "warm":
                read_s(files)
            read.append(read_s(files))
            async with HostClient.attach(place, host_idle_s=60) as client:
                await client.backend(spec).info()
                await asyncio.sleep(pause_s)
                if state == "cold":
                    drop(files)
                new = [draw.randrange(1000, 30000) for _ in range(NEW_TOKENS)]
                seconds, cached = await first_token_s(client, spec, [*chat, *new])
                again = [draw.randrange(1000, 30000) for _ in range(NEW_TOKENS)]
                held.append((await first_token_s(client, spec, [*chat, *again]))[0])
                await kill(client)
            first.append(seconds)
            found.append(cached)
        ttft, bare = statistics.median(first), statistics.median(read)
        print(
            f"{state:6}{min(found):8,}{ttft:8.3f}{bare:8.3f}{statistics.median(held):8.3f}"
            f"{ttft / prefill_s:11.3f}{ttft / bare:8.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--backend", choices=("llamacpp", "native"), default="llamacpp")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds after the load")
    parser.add_argument("--threads", type=int, help="by default measured")
    parser.add_argument("--max-batch-tokens", type=int, default=512)
    parser.add_argument("--kv-pool", choices=("grow", "static"), default="grow")
    parser.add_argument(
        "--folder", type=Path, help="where the files are; by default a temporary one"
    )
    args = parser.parse_args()
    settings = ModelSettings(
        context=args.tokens + 1000,
        max_sessions=2,
        max_batch_tokens=args.max_batch_tokens,
        threads=args.threads,
        batch_threads=args.threads,
        kv_pool=args.kv_pool,
        keep_alive_s=-1,
    )
    spec = ModelSpec(str(args.model), args.model.stem, args.backend, settings)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {datetime.date.today()}; {args.backend}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        root = Path(folder)
        place = HostPlace(root / "run", root / "log", root / "cache")
        asyncio.run(measure(place, spec, args.tokens, args.runs, args.pause))


if __name__ == "__main__":
    main()
