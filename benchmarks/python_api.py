"""A batch of the Python API compared with the same load through the HTTP server.

    python benchmarks/python_api.py MODEL [--prompts 500] [--tokens 32] [--rounds 3]

The same greedy completions of the same prompts, alternating: one call of `LLM.generate`; requests
to `/v1/completions` with 250 prompts each; and clients that each send the next prompt when their
last one is answered, as whole answers and as streams, and that wait as long as a busy server asks
them to. Host, worker and server are separate processes, as usual. Reported are seconds of wall
time, and how much faster the API is. Each run has its own prompts, so that it does not find the
cached prefixes of another run.
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
from collections.abc import Callable
from typing import Any

import httpx2

CLIENTS = 64
MOST_PROMPTS = 250
"""Maximum number of prompts per request."""


async def ask(url: str, bodies: list[dict[str, Any]], clients: int) -> int:
    """Send all `bodies`; returns the completion tokens that the server counted."""
    waiting = iter(bodies)
    tokens = 0

    async def work(client: httpx2.AsyncClient) -> None:
        nonlocal tokens
        for body in waiting:
            while (used := await send(client, body)) is None:
                pass
            tokens += used

    async def send(client: httpx2.AsyncClient, body: dict[str, Any]) -> int | None:
        """Completion tokens; None after the requested wait if the server was busy."""
        async with client.stream("POST", f"{url}/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines()]
        if answer.status_code == httpx2.codes.TOO_MANY_REQUESTS:
            await asyncio.sleep(float(answer.headers["Retry-After"]))
            return None
        answer.raise_for_status()
        if body.get("stream"):
            lines = [line[6:] for line in lines if line.startswith("data: {")]
        usages = (json.loads(line).get("usage") for line in lines if line)
        return sum(usage["completion_tokens"] for usage in usages if usage)

    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=600, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(work(client) for _ in range(clients)))
    return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        os.environ["HEARTH_HOME"] = home
        from hearth.app import LLM, SamplingParams
        from hearth.app.load_test import Load, prompts

        command = [sys.executable, "-m", "hearth.app.cli.main", "serve", args.model, "--port", "0"]
        serve = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert serve.stdout is not None
        url = serve.stdout.readline().decode().strip()
        url = url if url.endswith("/v1") else f"{url.rstrip('/')}/v1"
        took: dict[str, list[float]] = {}
        with LLM(args.model) as llm:
            print(f"{llm.info().name}, {args.prompts} prompts, {args.tokens} tokens each;")
            print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n")
            greedy = SamplingParams(temperature=0)

            def batch(texts: list[str]) -> int:
                done = llm.generate(texts, greedy, max_tokens=args.tokens, ignore_eos=True)
                return sum(each.usage.completion_tokens for each in done)

            def posted(clients: int, *, stream: bool = False) -> Callable[[list[str]], int]:
                def send(texts: list[str]) -> int:
                    size = 1 if clients == CLIENTS else MOST_PROMPTS
                    parts = [texts[at : at + size] for at in range(0, len(texts), size)]
                    asked: list[Any] = [part if len(part) > 1 else part[0] for part in parts]
                    fixed = {"model": args.model, "max_tokens": args.tokens, "temperature": 0}
                    fixed |= {"ignore_eos": True, "stream": stream}
                    fixed |= {"stream_options": {"include_usage": True}} if stream else {}
                    bodies = [{**fixed, "prompt": prompt} for prompt in asked]
                    return asyncio.run(ask(url, bodies, clients))

                return send

            ways = {
                "LLM.generate": batch,
                f"requests of {MOST_PROMPTS} prompts": posted(2),
                f"{CLIENTS} clients": posted(CLIENTS),
                f"{CLIENTS} clients, streams": posted(CLIENTS, stream=True),
            }
            batch(prompts(Load(64, 16, 8), 1))
            for number in range(args.rounds):
                for at, name in enumerate([*ways][number % 2 * 3 :: 1 - number % 2 * 2]):
                    texts = prompts(Load(args.prompts, 16, 8), 100 * number + at + 2)
                    began = time.perf_counter()
                    tokens = ways[name](texts)
                    took.setdefault(name, []).append(time.perf_counter() - began)
                    print(f"{name}: {took[name][-1]:.1f} s", file=sys.stderr, flush=True)
                    assert tokens == args.prompts * args.tokens, (name, tokens)
        serve.send_signal(signal.SIGINT)
        serve.wait(timeout=30)
    own = statistics.median(took["LLM.generate"])
    print("| | seconds | tokens/s | LLM.generate is faster by |\n|---|---|---|---|")
    for name in ways:
        median = statistics.median(took[name])
        each = ", ".join(f"{seconds:.1f}" for seconds in took[name])
        speed = args.prompts * args.tokens / median
        print(f"| {name} | {median:.1f} ({each}) | {speed:,.0f} | {median / own:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
