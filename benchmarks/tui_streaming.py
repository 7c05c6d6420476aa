"""What typing feels like while an answer streams: a transcript and a prompt in a terminal app.

    python benchmarks/tui_streaming.py [--seconds S] [--kinds list,fence,...] [--json]

A child process runs the app in a pseudo-terminal of its own; this process types keys into it and
waits for their echo. For each kind of text and each rate it prints

- key to echo: from writing a key until the terminal is told to show it (ms);
- lateness: how late a timer of 5 ms fires in the app's event loop (ms);
- drawing: processor time of the app's process as a share of the time, feeding included;
- lines: how many came in that time.

The figure to hold is a key's way at the 99th percentile under 30 ms on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("list", "nested", "fence", "table", "paragraphs")
RATES = (50, 100)
SIZE = (40, 120)  # rows and columns


def words(kind: str) -> Iterator[str]:
    """An endless answer in pieces of about a token."""
    number = 0
    while True:
        number += 1
        if kind == "list":
            line = f"- item {number} with **bold** words, `code` and a plain rest\n"
        elif kind == "nested":
            line = f"{'1. step' if number % 9 == 1 else '   - detail'} {number} of the long way\n"
        elif kind == "fence":
            start = "```python\n" if number == 1 else ""
            line = f"{start}def function_{number}(value: int) -> int: return value + {number}\n"
        elif kind == "table":
            start = "| name | value | note |\n|---|---:|---|\n" if number == 1 else ""
            line = f"{start}| row {number} | {number * 7} | a note of some words |\n"
        else:
            line = f"Sentence {number} of a *paragraph* that goes on for a while. "
            line += "\n\n" if number % 5 == 0 else ""
        for start_at in range(0, len(line), 4):
            yield line[start_at : start_at + 4]


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def run_app(kind: str, rate: int, seconds: float, preload: int, report: Path) -> None:
    """The child: an app in which text streams while somebody types."""
    ready = report.with_suffix(".ready")
    from hearth.app.tui.pace import set_pace

    set_pace()
    from textual.app import App, ComposeResult
    from textual.widgets import Input

    from hearth.app.tui.widgets.message import Shown
    from hearth.app.tui.widgets.transcript import Transcript

    class Bench(App[None]):
        def compose(self) -> ComposeResult:
            yield Transcript()
            yield Input()

        async def on_mount(self) -> None:
            self.query_one(Input).cursor_blink = False
            self.query_one(Input).focus()
            self.run_worker(self.stream())

        async def stream(self) -> None:
            transcript = self.query_one(Transcript)
            await transcript.show([Shown("q", "user", "Write a lot.")])
            await transcript.append(Shown("a", "assistant", "", state="streaming"))
            view = transcript.answer("a")
            pieces = words(kind)
            lines = 0
            while lines < preload:
                piece = next(pieces)
                lines += piece.count("\n")
                view.feed(piece)
            while view.is_behind:  # noqa: ASYNC110 - the view has no event for it, and needs none
                await asyncio.sleep(0.1)
            # What is there stays: without this, full collections of Python's garbage collector
            # halt everything for 50 ms every few seconds.
            gc.collect()
            gc.freeze()
            ready.touch()
            await asyncio.sleep(0.5)
            late = asyncio.create_task(self.lateness(seconds))
            used = time.process_time()
            started = time.perf_counter()
            fed = 0
            while (passed := time.perf_counter() - started) < seconds:
                while fed < passed * rate:
                    piece = next(pieces)
                    lines += piece.count("\n")
                    view.feed(piece)
                    fed += 1
                await asyncio.sleep(1 / rate)
            found = {
                "busy": (time.process_time() - used) / (time.perf_counter() - started),
                "lines": lines,
                "late_ms": await late,
            }
            await asyncio.to_thread(report.write_text, json.dumps(found))
            self.exit()

        async def lateness(self, seconds: float) -> list[float]:
            loop = asyncio.get_running_loop()
            late = []
            until = loop.time() + seconds
            while (now := loop.time()) < until:
                await asyncio.sleep(0.005)
                late.append((loop.time() - now - 0.005) * 1e3)
            return late

    Bench().run()


def type_keys(child: subprocess.Popen[bytes], fd: int, ready: Path) -> list[float]:
    """Type letters, none of which was there before; the milliseconds until each is shown."""
    found: list[float] = []
    letters = [chr(code) for code in (*range(0x14A, 0x180), *range(0x3B1, 0x52F))]
    seen = b""
    typed = 0
    sent_at = 0.0
    waiting = b""
    next_at = 0.0
    while child.poll() is None:
        now = time.perf_counter()
        if not ready.exists():
            if select.select([fd], [], [], 0.02)[0]:
                os.read(fd, 65536)
            continue
        if not waiting and now >= next_at:
            waiting = letters[typed % len(letters)].encode()
            typed += 1
            seen = b""
            sent_at = time.perf_counter()
            os.write(fd, waiting)
        if select.select([fd], [], [], 0.05 if waiting else 0.002)[0]:
            try:
                seen = (seen + os.read(fd, 65536))[-200_000:]
            except OSError:
                break
            if waiting and waiting in seen:
                found.append((time.perf_counter() - sent_at) * 1e3)
                waiting = b""
                next_at = time.perf_counter() + 0.05 + 0.013 * (typed % 5)
        if waiting and time.perf_counter() - sent_at > 5:
            found.append(5000.0)
            waiting = b""
            next_at = time.perf_counter()
        if not waiting and len(seen) > 100_000:
            seen = b""
    return found


def measure(kind: str, rate: int, seconds: float, preload: int, folder: Path) -> dict[str, object]:
    """One kind of text at one rate."""
    report = folder / f"{kind}-{rate}.json"
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    command = [sys.executable, __file__, "--child", kind, str(rate), str(seconds), str(preload)]
    environ = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    child = subprocess.Popen(
        [*command, str(report)], stdin=sub, stdout=sub, stderr=sub, env=environ, close_fds=True
    )
    os.close(sub)
    try:
        keys = type_keys(child, main, report.with_suffix(".ready"))
    finally:
        child.kill()
        child.wait()
        os.close(main)
    found = json.loads(report.read_text())
    return {
        "kind": kind,
        "tok_per_s": rate,
        "keys": len(keys),
        "echo_p50_ms": percentile(keys, 0.5),
        "echo_p99_ms": percentile(keys, 0.99),
        "late_p50_ms": percentile(found["late_ms"], 0.5),
        "late_p99_ms": percentile(found["late_ms"], 0.99),
        "late_max_ms": max(found["late_ms"]),
        "busy": found["busy"],
        "lines": found["lines"],
    }


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        kind, rate, seconds, preload, report = sys.argv[2:]
        run_app(kind, int(rate), float(seconds), int(preload), Path(report))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--preload", type=int, default=900, help="lines that are there before")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(kind, rate, options.seconds, options.preload, Path(folder))
            for kind in options.kinds.split(",")
            for rate in RATES
        ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("| text | tok/s | key→echo p50 | p99 | lateness p50 | p99 | max | busy | lines |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        times = " | ".join(
            f"{row[name]:.1f}"
            for name in ("echo_p50_ms", "echo_p99_ms", "late_p50_ms", "late_p99_ms", "late_max_ms")
        )
        print(
            f"| {row['kind']} | {row['tok_per_s']} | {times} | {row['busy']:.0%} | {row['lines']} |"
        )


if __name__ == "__main__":
    main()
