"""How a large library on a slow disk affects other work: the longest gap of a running stream, and
the time from a key to its echo in the terminal app.

    python benchmarks/large_library.py --model FILE.gguf [--files 50000] [--delay-ms 4] [--runs 5]

The library is a folder of `library_folders` with that many files in folders of 100; two files of
each folder are models, one of them a symbolic link. The disk is slowed down without privileges: a
small C library, built here and loaded with LD_PRELOAD into every process of Hearth, sleeps before
each libc call that opens, stats or lists something below that folder, and counts these calls.
Linux only.

Stream: one client streams MODEL, on one thread, while three others send requests in turn, each with
a pause of 0.75 s after a response: for the list of models, for one model by its name, and for an
answer of a model that does not exist. Figure: the longest time between two parts of the stream.

Keys: letters are typed into the app's prompt while it scans. Figures: from writing a key to its
echo, without the first second.

Each run is done without the library and with it. "calls" are the delayed ones during the
measurement; they prove that there was a scan. The limit is a ratio of 1.2.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import platform
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tui_startup import PROMPT_BOX
from tui_streaming import percentile, type_keys

HEARTH = [sys.executable, "-m", "hearth.app.cli.main"]
SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
FILES_A_FOLDER = 100
PAUSE_S = 0.75
FIRST_KEYS = 10
PATIENCE_S = 120.0
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern int open(const char *, int, ...);
extern void *mmap(void *, unsigned long, int, int, int, long);
static const char *slow;
static unsigned long slow_length;
static struct timespec delay;
static long *calls;

__attribute__((constructor)) static void start(void) {
    long us = atol(getenv("SLOW_US") ? getenv("SLOW_US") : "0");
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    const char *counter = getenv("SLOW_CALLS");
    delay.tv_sec = us / 1000000;
    delay.tv_nsec = us % 1000000 * 1000;
    if (counter) {
        void *page = mmap(0, 4096, 3, 1, real(counter, 2), 0);
        calls = page == (void *)-1 ? 0 : page;
    }
    slow = getenv("SLOW_FOLDER");
    slow_length = slow ? strlen(slow) : 0;
}

static void wait_for_disk(const char *path) {
    struct timespec left = delay;
    if (!slow_length || !path || strncmp(path, slow, slow_length)) return;
    if (calls) __sync_fetch_and_add(calls, 1);
    while (nanosleep(&left, &left)) {}
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, #name); wait_for_disk(path)
#define STAT(name) int name(const char *path, void *out) { \
    REAL(int, name, const char *, void *); return real(path, out); }
#define STATAT(name) int name(int at, const char *path, void *out, int flags) { \
    REAL(int, name, int, const char *, void *, int); return real(at, path, out, flags); }
#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
    REAL(int, name, const char *, int, ...); return real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
    REAL(int, name, int, const char *, int, ...); return real(at, path, flags, mode); }
STAT(stat) STAT(stat64) STAT(lstat) STAT(lstat64)
STATAT(fstatat) STATAT(fstatat64)
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
int statx(int at, const char *path, int flags, unsigned mask, void *out) {
    REAL(int, statx, int, const char *, int, unsigned, void *);
    return real(at, path, flags, mask, out);
}
void *opendir(const char *path) { REAL(void *, opendir, const char *); return real(path); }
long readlink(const char *path, char *to, unsigned long size) {
    REAL(long, readlink, const char *, char *, unsigned long); return real(path, to, size);
}
int access(const char *path, int mode) {
    REAL(int, access, const char *, int); return real(path, mode);
}
"""


@dataclass(frozen=True)
class Disk:
    """A slow disk.

    Attributes:
        folder: every call on a path below it waits.
        environ: environment variables that slow down a process.
        counter: file that counts the calls.
    """

    folder: Path
    environ: dict[str, str]
    counter: Path

    @property
    def calls(self) -> int:
        """How many calls have waited."""
        return int(struct.unpack("=q", self.counter.read_bytes()[:8])[0])


def slow_disk(work: Path, library: Path, delay_ms: float) -> Disk:
    """Build the preloaded C library in `work`."""
    source, shim, counter = work / "slow.c", work / "slow.so", work / "calls"
    source.write_text(SHIM)
    counter.write_bytes(bytes(4096))
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-w", "-fno-builtin", "-o", shim, source, "-ldl"],
        check=True,
    )
    environ = {
        "LD_PRELOAD": str(shim),
        "SLOW_FOLDER": str(library),
        "SLOW_US": str(round(delay_ms * 1000)),
        "SLOW_CALLS": str(counter),
    }
    return Disk(library, environ, counter)


def make_library(folder: Path, files: int) -> list[str]:
    """Write `files` files; returns the names of the models among them."""
    sys.path.insert(0, str(SUPPORT))
    from gguf_builder import tiny_llama

    folder.mkdir()
    original = tiny_llama(folder.parent / "tiny.gguf").read_bytes()
    names = []
    for at in range(files // FILES_A_FOLDER):
        below = folder / f"folder-{at:04}"
        below.mkdir()
        names += [f"model-{at:04}", f"link-{at:04}"]
        (below / f"model-{at:04}.gguf").write_bytes(original)
        (below / f"link-{at:04}.gguf").symlink_to(f"model-{at:04}.gguf")
        for number in range(FILES_A_FOLDER - 2):
            (below / f"file-{number:02}.txt").touch()
    return names


@contextlib.contextmanager
def home(disk: Disk, *, large: bool) -> Iterator[dict[str, str]]:
    """The environment of a separate Hearth, with or without the large library."""
    with tempfile.TemporaryDirectory(prefix="h.", dir="/tmp") as place:
        folders = json.dumps([str(disk.folder)] if large else [])
        (Path(place) / "config").mkdir()
        for file in (Path(place) / "settings.toml", Path(place) / "config" / "settings.toml"):
            file.write_text(f"library_folders = {folders}\n")
        environ = {**os.environ, **disk.environ, "HEARTH_HOME": place, "HOME": place}
        environ |= {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color", "HF_HOME": place}
        try:
            yield environ
        finally:
            subprocess.run(
                [*HEARTH, "stop", "--all"], env=environ, capture_output=True, check=False
            )


# ---- a stream


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Send one request; returns the status and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def longest_gap_ms(port: int, model: str, seconds: float) -> tuple[float, int]:
    """The longest time between two parts of a stream, and the number of parts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to a thousand."}],
        "max_tokens": 2048,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 200, response.read()
    gaps: list[float] = []
    began = last = 0.0
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        if last and now - began > 1.0:  # The caches fill during the first second.
            gaps.append((now - last) * 1e3)
        began = began or now
        last = now
        if now - began > seconds:
            break
    connection.close()
    assert gaps, "the stream ended before it was measured"
    return max(gaps), len(gaps)


def stream(disk: Disk, model: Path, names: list[str], seconds: float, *, large: bool) -> Row:
    """One run with a separate server."""
    with home(disk, large=large) as environ:
        command = [*HEARTH, "serve", str(model), "--port", "0", "--threads", "1"]
        server = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        stopped = threading.Event()
        statuses: list[int] = []
        try:
            assert server.stdout is not None
            port = int(
                server.stdout.readline().strip().rstrip("/").removesuffix("/v1").rpartition(":")[2]
            )

            def asking(number: int) -> None:
                count = 0
                while not stopped.wait(PAUSE_S):
                    count += 1
                    name = names[(count * 37) % len(names)] if large else "guide"
                    missing = {"model": f"none-{number}-{count}", "prompt": "x"}
                    work: list[Callable[[], tuple[int, bytes]]] = [
                        lambda: ask(port, "GET", "/v1/models"),
                        lambda name=name: ask(port, "GET", f"/v1/models/{name}"),  # type: ignore[misc]
                        lambda body=missing: ask(port, "POST", "/v1/completions", body),  # type: ignore[misc]
                    ]
                    statuses.append(work[number]()[0])

            others = [threading.Thread(target=asking, args=(number,)) for number in range(3)]
            before = disk.calls
            for other in others:
                other.start()
            gap_ms, parts = longest_gap_ms(port, model.stem, seconds)
            calls = disk.calls - before
            stopped.set()
            for other in others:
                other.join()
            assert not any(status >= 500 and status != 503 for status in statuses), statuses
            return Row({"longest gap": gap_ms}, calls, f"{parts} parts, {len(statuses)} requests")
        finally:
            stopped.set()
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            server.kill()


# ---- keys


def keys(disk: Disk, seconds: float, *, large: bool) -> Row:
    """One run with a separate app."""
    with home(disk, large=large) as environ, tempfile.TemporaryDirectory() as folder:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            HEARTH, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        drawn = b""
        try:
            while PROMPT_BOX not in drawn:
                assert select.select([ours], [], [], PATIENCE_S)[0], drawn
                drawn += os.read(ours, 65536)
            ready = Path(folder, "ready")
            ready.touch()
            end = threading.Timer(seconds, process.kill)
            end.start()
            before = disk.calls
            found = type_keys(process, ours, ready)[FIRST_KEYS:]
            calls = disk.calls - before
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        figures = {f"p{share * 100:.0f}": percentile(found, share) for share in (0.5, 0.95, 0.99)}
        return Row(figures, calls, f"{len(found)} keys")


# ---- the table


@dataclass(frozen=True)
class Row:
    """The result of one run: figures in ms, delayed calls, and how much was measured."""

    figures: dict[str, float]
    calls: int
    measured: str


def compare(title: str, runs: int, run: Callable[[bool], Row]) -> list[str]:
    """Rows of the table: medians of `runs`, alternating without and with the library."""
    without, with_it = [], []
    for _ in range(runs):
        without.append(run(False))
        with_it.append(run(True))
        print(f"{title}: {without[-1]} | {with_it[-1]}", file=sys.stderr, flush=True)
    lines = []
    for name in without[0].figures:
        before = [row.figures[name] for row in without]
        after = [row.figures[name] for row in with_it]
        low, high = statistics.median(before), statistics.median(after)
        calls = round(statistics.median(row.calls for row in with_it))
        lines.append(
            f"| {title}, {name} | {low:.1f} ({min(before):.1f} to {max(before):.1f}) "
            f"| {high:.1f} ({min(after):.1f} to {max(after):.1f}) | {high / low:.2f} | {calls:,} |"
        )
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF to stream")
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--delay-ms", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="large-library-") as folder:
        work = Path(folder)
        names = make_library(work / "library", options.files)
        disk = slow_disk(work, work / "library", options.delay_ms)
        lines = compare(
            "stream",
            options.runs,
            lambda large: stream(disk, options.model, names, options.seconds, large=large),
        )
        lines += compare(
            "key to echo", options.runs, lambda large: keys(disk, options.seconds, large=large)
        )
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, {datetime.date.today()}: "
        f"{options.files:,} files, {len(names):,} models, {options.delay_ms} ms a call; ms, median "
        f"of {options.runs} runs (range)\n"
    )
    print("| what | without | with | ratio | calls |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
