"""An answer whose end cannot be written is not lost, and its chat goes on: with a database that
another process has locked, and with a full disk.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.app.chats.errors import ChatsError, ChatsLocked
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers

TEXT = "all of the answer " * 5000
SPACE = "8m"

SCRIPT = """
import json, os, resource, signal, sys
from pathlib import Path
from hearth.app.chats.errors import ChatsError
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers

path, fault = Path(sys.argv[1]), sys.argv[2]
store = ChatStore(path, busy_timeout_s=0.05)
thread = store.create()
asked = store.add(thread.id, None, "user", "question")
answer = store.begin_answer(thread.id, asked.id, "guide")
store.save_answer(answer.id, "half", "")
if fault == "limit":
    most = max(file.stat().st_size for file in path.parent.glob("*-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
if fault == "full":
    with open(path.with_name("filler"), "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError as error:
            assert error.errno == 28, error
print("ready", flush=True)
sys.stdin.readline()
text = "all of the answer " * 5000
try:
    numbers = Numbers(completion_tokens=7)
    store.end_answer(ChatMessage(answer.id, None, "assistant", text, "why", numbers=numbers))
    failed = ""
except ChatsError as error:
    failed = error.code
shown = store.path(thread.id)[-1]
if fault == "full":
    path.with_name("filler").unlink() if sys.argv[3] == "freed" else None
if sys.argv[4] == "close":
    store.close()
print(json.dumps([failed, thread.id, answer.id, shown.content == text, shown.state]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(path: Path, fault: str, freed: str = "", end: str = "", *before: str) -> list[object]:
    """What a process that met `fault` at the end of its answer reports before it is killed."""
    command = [*before, sys.executable, "-c", SCRIPT, str(path), fault, freed, end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with locked(path) if fault == "lock" else contextlib.nullcontext():
            output, _ = child.communicate("\n", timeout=60)
    told: list[object] = json.loads(output)
    return told


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection holds the write lock."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


def check(path: Path, told: list[object], code: str) -> None:
    """The answer is whole after the next start, and its chat goes on."""
    failed, thread, answer, is_shown, state = told
    assert (failed, is_shown, state) == (code, True, "complete")
    with ChatStore(path) as store:
        kept = store.path(str(thread))[-1]
        assert (kept.id, kept.content, kept.reasoning) == (answer, TEXT, "why")
        assert (kept.state, kept.numbers) == (
            "complete",
            Numbers(completion_tokens=7, model="guide"),
        )
        assert len(store.search("all of the answer")) == 1
        store.add(str(thread), kept.id, "user", "and now?")
    assert [file.name for file in path.parent.iterdir() if file.name != "filler"] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and limits of POSIX")
@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize(
    ("fault", "code"), [("lock", "chats_locked"), ("limit", "chats_unwritable")]
)
def test_the_text_is_there_after_the_next_start(
    path: Path, fault: str, code: str, end: str
) -> None:
    check(path, run(path, fault, end=end), code)


MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]


def can_mount(folder: Path) -> bool:
    command = [*MOUNT, f"mount -t tmpfs -o size=1m none {folder}"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, check=False).returncode


@pytest.mark.skipif(sys.platform != "linux", reason="needs a small tmpfs")
@pytest.mark.parametrize("freed", ["freed", "full"])
def test_a_full_disk_does_not_lose_the_end(tmp_path: Path, freed: str) -> None:
    folder, copy = tmp_path / "small", tmp_path / "copy"
    folder.mkdir()
    if not can_mount(folder):
        pytest.skip("no file system can be mounted here")
    steps = f'mount -t tmpfs -o size={SPACE} none {folder}; "$@" || true; cp -r {folder} {copy}'
    before = [*MOUNT, steps, "sh"]
    told = run(folder / "chats.db", "full", freed, "close", *before)
    check(copy / "chats.db", told, "chats_disk_full")


def saved_states(path: Path) -> list[str]:
    """The states of all messages as the database has them."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        return [state for (state,) in other.execute("SELECT state FROM message ORDER BY number")]


def test_a_chat_goes_on_as_soon_as_the_lock_is_free(path: Path) -> None:
    with ChatStore(path, busy_timeout_s=0.02) as store:
        thread = store.create()
        answer = store.begin_answer(thread.id, None)
        with locked(path):
            with pytest.raises(ChatsLocked):
                store.end_answer(ChatMessage(answer.id, None, "assistant", TEXT))
            shown = store.message(answer.id)
            assert (shown.content, shown.state) == (TEXT, "complete")
            assert store.tree(thread.id)[1] == store.path(thread.id) == [shown]
            with pytest.raises(ChatsLocked):
                store.add(thread.id, answer.id, "user", "more")
        store.add(thread.id, answer.id, "user", "more")
        assert saved_states(path) == ["complete", "complete"]


def test_the_end_is_saved_by_itself(path: Path) -> None:
    with ChatStore(path, busy_timeout_s=0.02) as store:
        answer = store.begin_answer(store.create().id, None)
        with locked(path), pytest.raises(ChatsLocked):
            store.end_answer(
                ChatMessage(answer.id, None, "assistant", TEXT, state="failed", error="why")
            )
        deadline = time.monotonic() + 10
        while saved_states(path) == ["streaming"] and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.closing(sqlite3.connect(path)) as other:
            row = other.execute("SELECT content, state, error FROM message").fetchone()
        assert row == (TEXT, "failed", "why")


def test_an_older_end_does_not_replace_a_continued_answer(path: Path) -> None:
    with ChatStore(path, busy_timeout_s=0.02) as store:
        thread = store.create()
        answer = store.begin_answer(thread.id, None)
        with locked(path), pytest.raises(ChatsLocked):
            store.end_answer(ChatMessage(answer.id, None, "assistant", "one", state="stopped"))
        store.continue_answer(answer.id)
        store.save_answer(answer.id, "one two", "")
        (file,) = path.parent.glob("*-unsaved-*")
        store._writers.release()  # as if it were killed
        with ChatStore(path) as next_one:
            assert next_one.message(answer.id).content == "one two"
        assert not file.exists()
        store.close()


def test_with_a_locked_database_the_next_start_shows_the_text_and_saves_it_later(
    path: Path,
) -> None:
    told = run(path, "lock")
    with locked(path):
        store = ChatStore(path, busy_timeout_s=0.02)
        assert store.message(str(told[2])).content == TEXT
    with contextlib.closing(store), contextlib.suppress(ChatsError):
        store.add(str(told[1]), str(told[2]), "user", "more")
        assert "streaming" not in saved_states(path)
