"""A process that chats, for tests that run several or kill them; it is no test itself.

Usage: chatting.py DATABASE THREAD NAME TURNS KILL_AFTER

Says `TURNS` things in `THREAD` ("": a new one), each after the one before, and writes an answer to
each, which it saves once for each second of its imagined time. Every line it prints is JSON and
tells what is certain from then on. With `KILL_AFTER` above 0 it kills itself, as `kill -9` does,
once SQLite has done about ten times so many instructions.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage

SECONDS = 4
TEXT_OF_A_SECOND = "These words come in one second. "


def tell(**values: Any) -> None:
    """In one write, so that no line is half there."""
    os.write(1, (json.dumps(values) + "\n").encode())


def die_after(steps: int) -> None:
    """Kill this process when its connections have done so much work."""
    connect = sqlite3.connect
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done >= steps:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_progress_handler(count, 10)
        return connection

    sqlite3.connect = counted  # type: ignore[assignment]


def chat(store: ChatStore, thread: str, name: str, turns: int) -> None:
    """Ask and answer `turns` times."""
    parent: str | None = None
    for turn in range(turns):
        question = f"{name} asks {turn}: " + "why? " * (1 + 200 * (turn % 3))
        asked = store.add(thread, parent, "user", question)
        tell(asked=asked.id, content=question)
        answer = store.begin_answer(thread, asked.id, "imagined")
        text = ""
        for _ in range(SECONDS):
            text += TEXT_OF_A_SECOND
            tell(made=answer.id, characters=len(text), in_a_second=len(TEXT_OF_A_SECOND))
            store.save_answer(answer.id, text, "")
        store.end_answer(ChatMessage(answer.id, None, "assistant", text, finish_reason="stop"))
        tell(ended=answer.id, characters=len(text))
        parent = answer.id


if __name__ == "__main__":
    database, thread_id, own_name, said, kill_after = sys.argv[1:]
    if int(kill_after):
        die_after(int(kill_after))
    with ChatStore(Path(database)) as opened:
        chat(opened, thread_id or opened.create().id, own_name, int(said))
