"""Whether `kv_budget` is a limit: the growth of anonymous memory over a loaded, idle process.

    python benchmarks/memory_account.py [--model MODEL] [--budget-mb 256] [--sessions 12]
        [--backend llamacpp] [--answer 512] [--text 500]

One engine over one runner, in this process, under a mixed load. The prompts of the sessions and
half of their answers fill the budget and the rest exceeds it, so that some are preempted, and
offloaded to plain memory as far as the budget allows; each is asked twice, so that kept and
offloaded blocks are found again. Meanwhile texts are embedded. RssAnon is read every few
milliseconds. The bound is 1.05 times the budget plus 64 MiB. The growth is also given relative to
the process after one long prompt and some texts to embed, to exclude memory that is touched by the
first work of each kind.
Without --model a random 100M-parameter Q8_0 llama is written to a temporary folder. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import tempfile
import threading
import time
from pathlib import Path

from interference import Sessions, random_model

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.worker.runners import open_model

_EVERY_S = 0.005
_SLACK_BYTES = 64 << 20
_TARGET_S = 0.05


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("This system does not tell RssAnon: run it on Linux.")


class HighWater:
    """The peak of anonymous memory between `start` and `stop`."""

    def __init__(self) -> None:
        self.most = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> int:
        """The peak since `start`."""
        self._over.set()
        self._thread.join()
        return self.most

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.most = max(self.most, anonymous_bytes())


def load(sessions: Sessions, count: int, prompt_tokens: int, answer: int, text: int) -> None:
    """Run `count` sessions at once, embed texts meanwhile, then ask each session again."""
    asked = [sessions.begin(prompt_tokens, answer) for _ in range(count)]
    texts = [sessions.embed(text) for _ in range(8)]
    while not all(one.done for one in (*asked, *texts)):
        sessions.engine.run_once()
    again = [sessions.ask([*one.tokens[:prompt_tokens], 5, 6, 7], 20) for one in asked]
    texts = [sessions.embed(text) for _ in range(8)]
    while not all(one.done for one in (*again, *texts)):
        sessions.engine.run_once()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a file or folder; a random one by default")
    parser.add_argument("--backend", choices=("auto", "llamacpp", "native"), default="auto")
    parser.add_argument("--answer", type=int, default=512, help="tokens of each answer")
    parser.add_argument("--text", type=int, default=500, help="tokens of each text to embed")
    parser.add_argument("--budget-mb", type=int, default=256)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--kv-pool", choices=("grow", "static"), default="grow")
    parser.add_argument("--no-warm-up", action="store_true", help="nothing before the load")
    arguments = parser.parse_args()
    budget = arguments.budget_mb << 20
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        path = arguments.model or random_model(Path(folder))
        settings = ModelSettings(
            context=4096,
            max_sessions=arguments.sessions,
            kv_budget_bytes=budget,
            kv_pool=arguments.kv_pool,
        )
        spec = ModelSpec(str(path), backend=arguments.backend, settings=settings)
        loaded = open_model(spec, Path(folder))
        sessions = Sessions(loaded, _TARGET_S, time.perf_counter)
        warm = sessions.begin(64, 2)
        sessions.first_token_s(warm)
        sessions.end(warm)
        info = loaded.runner.info
        idle = anonymous_bytes()
        if not arguments.no_warm_up:
            warm = sessions.begin(min(1000, info.context // 2), 2)
            texts = [sessions.embed(arguments.text) for _ in range(8)]
            while not all(one.done for one in (warm, *texts)):
                sessions.engine.run_once()
            sessions.end(warm)
        used = anonymous_bytes()
        prompt_tokens = info.pool_tokens // arguments.sessions - arguments.answer // 2
        water = HighWater()
        water.start()
        load(sessions, arguments.sessions, prompt_tokens, arguments.answer, arguments.text)
        most = water.stop()
        stats = sessions.engine.stats()
        loaded.runner.close()
    bound = 1.05 * budget + _SLACK_BYTES
    print(
        f"{loaded.info.name}, {loaded.info.quantization}, pool of {info.pool_tokens:,} tokens,"
        f" {arguments.kv_pool}, {arguments.sessions} sessions of {prompt_tokens:,},"
        f" {platform.machine()}, {datetime.date.today()}"
    )
    print(
        f"preemptions {stats.preemptions}, offloaded at the end {stats.offloaded_tokens:,} tokens"
    )
    print("\n| what | MiB |\n|---|---:|")
    growths = (("loaded", most - idle), ("used once", most - used))
    for name, nbytes in (("budget", budget), ("bound", bound)):
        print(f"| {name} | {nbytes / 2**20:,.0f} |")
    for name, growth in growths:
        verdict = "within" if growth <= bound else "BEYOND"
        print(f"| growth over the process {name}: {verdict} | {growth / 2**20:,.0f} |")


if __name__ == "__main__":
    main()
