"""A process that chats is killed (`kill -9`) anywhere: the database stays whole, no message of the
user is lost, and of an answer at most what came in one second.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hearth.app.chats.store import ChatStore

CHATTING = Path(__file__).with_name("chatting.py")
ENDLESS = "100000"
MOST_STEPS = 3000
"""Tens of SQLite's instructions."""
MOST_LINES = 40
KILLS_OF_A_FILE = 10

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


def killed_by_itself(path: Path, name: str, chance: random.Random) -> list[dict[str, Any]]:
    """What a process told that died amid its own work, perhaps within a transaction."""
    steps = chance.randrange(1, MOST_STEPS)
    done = subprocess.run(
        [sys.executable, CHATTING, path, "", name, ENDLESS, str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    return [json.loads(line) for line in done.stdout.splitlines()]


def killed_from_outside(path: Path, name: str, chance: random.Random) -> list[dict[str, Any]]:
    """What a process told that was killed after some line, wherever it was by then."""
    with subprocess.Popen(
        [sys.executable, CHATTING, path, "", name, ENDLESS, "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(chance.randrange(1, MOST_LINES))]
        child.kill()
        lines += child.stdout.readlines()
    return [json.loads(line) for line in lines]


def check(path: Path, told: list[dict[str, Any]]) -> None:
    """All that was told is there."""
    if path.exists():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with ChatStore(path) as store:
        for line in told:
            if "asked" in line:
                asked = store.message(line["asked"])
                assert (asked.content, asked.state) == (line["content"], "complete")
            if "made" in line:
                kept = store.message(line["made"])
                assert len(kept.content) >= line["characters"] - line["in_a_second"]
                assert kept.state in ("complete", "stopped")
            if "ended" in line:
                ended = store.message(line["ended"])
                assert (len(ended.content), ended.state) == (line["characters"], "complete")
        for thread in store.threads():
            _, tree = store.tree(thread.id)
            assert all(message.state != "streaming" for message in tree)
        answers = [line for line in told if "ended" in line]
        assert len(store.search("words come", limit=10_000)) >= len(answers)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def kill(folder: Path, number: int, everything: dict[Path, list[dict[str, Any]]]) -> None:
    """One kill point; the first of each file falls into its making."""
    path = folder / f"{number // KILLS_OF_A_FILE}" / "chats.db"
    path.parent.mkdir(exist_ok=True)
    chance = random.Random(number)
    killed = killed_by_itself if number % 2 == 0 else killed_from_outside
    told = everything.setdefault(path, [])
    told += killed(path, f"chat{number}", chance)
    check(path, told)


def test_eight_kills_lose_nothing(tmp_path: Path) -> None:
    everything: dict[Path, list[dict[str, Any]]] = {}
    for number in range(8):
        kill(tmp_path, number, everything)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    everything: dict[Path, list[dict[str, Any]]] = {}
    for number in range(200):
        kill(tmp_path, number, everything)


@pytest.mark.parametrize("steps", range(1, 320, 40))
def test_a_kill_while_the_file_is_made_leaves_one_that_can_be_used(path: Path, steps: int) -> None:
    done = subprocess.run(
        [sys.executable, CHATTING, path, "", "name", ENDLESS, str(steps)],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    check(path, [])
