"""Deleting a chat of 1 MB from a history of 500 MB: time, memory, and which traces remain.

    python benchmarks/chat_store.py [--mb 500] [--chats 5]

The history is a file of `--mb` with chats of 1 MB and shorter ones, searchable as usual. Each
deletion, including closing the store, runs in its own process; its memory is the increase of its
peak (`ru_maxrss`). Afterwards all files are searched for the words of the deleted chat.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DELETE = """
import json, resource, sys, time
from pathlib import Path
from hearth.app.chats.store import ChatStore
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
began = time.perf_counter()
store = ChatStore(Path(sys.argv[1]))
opened, before = time.perf_counter(), peak()
store.delete(sys.argv[2])
deleted, after = time.perf_counter(), peak()
store.close()
closed = time.perf_counter()
times = [opened - began, deleted - opened, closed - deleted]
print(json.dumps([*(1000 * t for t in times), after - before, peak() - before]))
"""


def fill(path: Path, megabytes: int, chats: int) -> list[tuple[str, str]]:
    """Make the history; returns (id, secret word) of the chats to delete."""
    from hearth.app.chats.store import ChatStore
    from hearth.app.chats.tree import ChatMessage, Thread

    chance = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(40_000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    marked: list[tuple[str, str]] = []

    def chat(store: ChatStore, size: int, secret: str) -> str:
        tree: list[ChatMessage] = []
        while sum(len(message.content) for message in tree) < size:
            text = f"{secret} " + " ".join(chance.choices(words, weights, k=chance.randint(5, 900)))
            role = "assistant" if len(tree) % 2 else "user"
            parent = tree[-1].id if tree else None
            tree.append(ChatMessage(str(len(tree)), parent, role, text, created_at=time.time()))
        head = Thread("x", f"About {secret}", 0, 0, False, False, "m", "", {}, tree[-1].id, 0)
        return store.insert(head, tree).id

    with ChatStore(path) as store:
        number = 0
        while path.stat().st_size < megabytes << 20:
            secret = f"secret{number:06}x"
            large = number % 10 == 0
            made = chat(store, 1 << 20 if large else chance.randint(1000, 60_000), secret)
            if large:
                marked.append((made, secret))
            number += 1
            if number % 50 == 0:
                print(f"\r{path.stat().st_size >> 20} MB", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [marked[len(marked) * at // chats] for at in range(chats)]


def traces(folder: Path, word: str) -> int:
    """The number of occurrences of `word` in the files."""
    found, step = 0, 64 << 20
    for file in folder.iterdir():
        with file.open("rb") as reading:
            tail = b""
            while piece := reading.read(step):
                found += (tail + piece).count(word.encode())
                tail = piece[1 - len(word) :]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--chats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        path = Path(folder) / "chats.db"
        deleted = fill(path, args.mb, args.chats)
        cores = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        print(f"{path.stat().st_size / (1 << 20):.0f} MB, {cores}\n")
        print("| open, ms | delete, ms | close, ms | memory: delete, close, MB | traces |")
        print("|---|---|---|---|---|")
        for thread, secret in deleted:
            before = traces(Path(folder), secret)
            command = [sys.executable, "-c", DELETE, str(path), thread]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            opened, took, closed, peak, last = json.loads(done.stdout)
            left = traces(Path(folder), secret)
            print(
                f"| {opened:.0f} | {took:.0f} | {closed:.0f} | {peak:.1f}, {last:.1f} "
                f"| {before}, then {left} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
