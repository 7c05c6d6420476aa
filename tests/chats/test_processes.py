"""Several processes, and several threads, use the same file at once."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hearth.app.chats.errors import MessageInUse
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage

CHATTING = Path(__file__).with_name("chatting.py")
TURNS = 8


def start(path: Path, thread: str, name: str, turns: int = TURNS) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHATTING), str(path), thread, name, str(turns), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_and_this_one_chat_at_once(store: ChatStore, path: Path) -> None:
    shared, own = store.create(), store.create()
    children = [start(path, shared.id, name) for name in ("one", "two")]
    parent = None
    said = []
    for number in range(30):
        parent = store.add(own.id, parent, "user", f"message {number}").id
        said.append(parent)
        store.threads()
    for child in children:
        output, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        for line in map(json.loads, output.splitlines()):
            if "asked" in line:
                assert store.message(line["asked"]).content == line["content"]
            if "ended" in line:
                assert store.message(line["ended"]).state == "complete"
    assert [message.id for message in store.path(own.id)] == said
    assert store.thread(shared.id).messages == 2 * 2 * TURNS
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_answer_is_cut_off_only_with_its_process(store: ChatStore, path: Path) -> None:
    thread = store.create()
    child = start(path, thread.id, "child", turns=100_000)
    assert child.stdout is not None
    answer = ""
    while not answer:
        answer = json.loads(child.stdout.readline()).get("made", "")
    with ChatStore(path) as other:
        other.stop_cut_off()
        states = [message.state for message in other.tree(thread.id)[1]]
        assert "stopped" not in states
    child.kill()
    child.communicate()
    store.stop_cut_off()
    states = [message.state for message in store.tree(thread.id)[1]]
    assert "streaming" not in states
    for message in store.tree(thread.id)[1]:
        if message.state == "stopped":
            store.continue_answer(message.id)
    files = [file.name for file in path.parent.iterdir() if "writer" in file.name]
    assert len(files) <= 1


def test_many_stores_open_a_new_file_at_once(path: Path) -> None:
    def open_and_say(number: int) -> str:
        with ChatStore(path) as store:
            return store.add(store.create().id, None, "user", f"word{number}").id

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(open_and_say, range(8)))
    with ChatStore(path) as store:
        assert {hit.message_id for hit in store.search("word") if hit.message_id} == set(said)


def test_threads_share_one_store(store: ChatStore) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None)

    def act(number: int) -> None:
        store.add(thread.id, None, "user", f"message {number}")
        store.path(thread.id)
        store.save_answer(answer.id, f"answer {number}", "")
        if number % 10 == 0:
            store.delete(store.clone(thread.id).id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(act, range(40)))
    assert store.thread(thread.id).messages == 41
    assert len(store.threads()) == 1


def test_only_one_of_two_stores_continues_an_answer(store: ChatStore, path: Path) -> None:
    answer = store.begin_answer(store.create().id, None)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one", state="stopped"))
    with ChatStore(path) as other:
        with ThreadPoolExecutor(2) as pool:
            tries = [pool.submit(each.continue_answer, answer.id) for each in (store, other)]
        errors = [each.exception() for each in tries]
        assert sorted(type(error) for error in errors if error is not None) == [MessageInUse]
