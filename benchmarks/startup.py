"""Start-up times: `hearth --help`, and from Enter to the first word of the bundled model.

    python benchmarks/startup.py [--runs 7]

Warm means that the host runs and the model is loaded; cold, that neither is. Wall-clock times of
whole processes, from their start to the end of the output or to its first byte.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

HEARTH = [sys.executable, "-m", "hearth.app.cli.main"]
ASK = [*HEARTH, "run", "guide", "hi"]

Measure = tuple[str, Callable[[], float]]
"""What is measured, and a function that measures it once, in seconds."""


def whole(command: list[str], env: Mapping[str, str]) -> float:
    """Seconds until `command` has ended."""
    began = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_byte(command: list[str], env: Mapping[str, str]) -> float:
    """Seconds until the first byte of `command` on stdout."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "nothing was said"
        took_s = time.perf_counter() - began
        process.communicate()
    return took_s


def cold_first_byte(env: Mapping[str, str]) -> float:
    """`first_byte` of a question in a separate home, where no host runs."""
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        return first_byte(ASK, {**env, "HEARTH_HOME": home, "HEARTH_KEEP_ALIVE_S": "0"})


def print_table(rows: list[Measure], runs: int) -> None:
    """Take each measure `runs` times, and print the least, the median and the most."""
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, {datetime.date.today()}, s of {runs}")
    print(f"\n| {'what':<38} | {'min':>6} | {'median':>6} | {'max':>6} |")
    print(f"|{'-' * 40}|{'-' * 7}:|{'-' * 7}:|{'-' * 7}:|")
    for name, measure in rows:
        took = [measure() for _ in range(runs)]
        low, middle, high = min(took), statistics.median(took), max(took)
        print(f"| {name:<38} | {low:>6.3f} | {middle:>6.3f} | {high:>6.3f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        env = {**os.environ, "HEARTH_HOME": home, "HEARTH_KEEP_ALIVE_S": "20"}
        first_byte(ASK, env)
        rows: list[Measure] = [
            ("hearth --help, whole", lambda: whole([*HEARTH, "--help"], env)),
            ("hearth list, whole", lambda: whole([*HEARTH, "list"], env)),
            ("hearth run guide hi, warm, first byte", lambda: first_byte(ASK, env)),
            ("hearth run guide hi, warm, whole", lambda: whole(ASK, env)),
            ("hearth run guide hi, cold, first byte", lambda: cold_first_byte(env)),
        ]
        print_table(rows, runs)


if __name__ == "__main__":
    main()
