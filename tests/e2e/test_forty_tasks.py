"""Tasks of a user, forty and more, in a real terminal of three sizes. At each sample
(`TerminalSession.agree`) the screen is compared with the host, the history and the downloads.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import drawn
from commands import HEARTH
from drawn import ALTERNATE_OFF, ALTERNATE_ON, AppTerminal
from gguf_builder import tiny_llama, tiny_vocabulary
from hub_server import Fault, HubServer, Repo, hub_server
from terminal_session import (
    ALT_DOWN,
    ALT_UP,
    DOWN,
    ENTER,
    ESCAPE,
    F_KEYS,
    LEFT,
    RIGHT,
    SCREENS,
    TAB,
    TerminalSession,
    control,
    current_screen,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here"),
]

SIZES = [(80, 24), (120, 40), (200, 60)]
TASKS: list[Callable[[TerminalSession, Path], None]] = []
REPO = "org/Tiny-GGUF"
QUESTION = "How do I download a model?"


def task(do: Callable[[TerminalSession, Path], None]) -> Callable[[TerminalSession, Path], None]:
    """One of the forty."""
    TASKS.append(do)
    return do


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `endless.gguf`, which does not end by itself, and `large.gguf`, in F16."""
    folder = tmp_path_factory.mktemp("models")
    tiny_llama(folder / "endless.gguf", context=32768)
    tiny_llama(folder / "large.f16.gguf", dtype="f16", hidden=1024, layers=10, heads=16, kv_heads=8)
    return folder


@pytest.fixture
def session(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TerminalSession]:
    monkeypatch.setattr(drawn, "PATIENCE_S", 90.0)
    made = TerminalSession(tmp_path / "home", size)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("do", TASKS, ids=lambda do: do.__name__)
def test_task(
    do: Callable[[TerminalSession, Path], None], session: TerminalSession, models: Path
) -> None:
    do(session, models)
    assert session.samples, "the task compared nothing"


def test_there_are_forty_tasks() -> None:
    assert len(TASKS) >= 40


# ---- what the tasks share


@contextmanager
def opened(session: TerminalSession, *arguments: str, **env: str) -> Iterator[AppTerminal]:
    """The app with a new chat, until the block ends; then it quits and leaves the terminal as it
    was.
    """
    app = session.open(*arguments, **env)
    session.chat = ""
    yield app
    leave(app)


def leave(app: AppTerminal) -> None:
    """Quit; the terminal is as it was."""
    assert app.leave() == 0
    app.check_left()


@contextmanager
def endless(session: TerminalSession, models: Path) -> Iterator[AppTerminal]:
    """`endless_app`, until the block ends."""
    app = endless_app(session, models)
    yield app
    leave(app)


def endless_app(session: TerminalSession, models: Path) -> AppTerminal:
    """The app with a model whose answers do not end, which is answering "hello"."""
    session.env["HEARTH_LOGIT_BIAS"] = f"{tiny_vocabulary().id_of('<|end|>')}=-100"
    session.env["HEARTH_MIN_P"] = "0"
    app = session.open("chat", str(models / "endless.gguf"))
    ask_endless(session, app, "hello")
    return app


def ask_endless(session: TerminalSession, app: AppTerminal, text: str) -> None:
    app.say(text)
    app.until(lambda: session.answer(text) and session.answer(text).content)
    session.chat = text
    session.agree(app)


def ask(session: TerminalSession, app: AppTerminal, text: str = QUESTION, title: str = "") -> None:
    """Ask the model and wait for the end of its answer."""
    title = title or text
    before = len(session.messages(title))
    app.say(text)
    app.until(
        lambda: (
            len(session.messages(title)) == before + 2
            and session.messages(title)[-1].state == "complete"
        )
    )
    session.chat = title
    session.agree(app)


def command(app: AppTerminal, text: str) -> None:
    """Do a slash command."""
    app.say(text)
    app.until(lambda: text not in app.text)


def go(session: TerminalSession, app: AppTerminal, name: str) -> None:
    """Go to a screen by its key."""
    app.type(F_KEYS[SCREENS.index(name) + 2])
    app.until(lambda: current_screen(app) == name)
    session.agree(app)


def stop(session: TerminalSession, app: AppTerminal, title: str) -> None:
    """Stop the answer of the open chat."""
    app.type(ESCAPE)
    app.until(lambda: session.answer(title).state == "stopped")
    session.agree(app)


def ten_chats(session: TerminalSession) -> list[str]:
    """Chats of guide in the history; the titles, newest first."""
    titles = [f"chat number {number}" for number in range(10)]
    with session.chats() as chats:
        for title in titles:
            thread = chats.create(title=title, model="guide")
            chats.add(thread.id, None, "user", f"The question of {title}")
    return titles[::-1]


@contextmanager
def hub_of(session: TerminalSession, models: Path) -> Iterator[HubServer]:
    """A Hub with one repository of a GGUF file of some megabytes."""
    data = (models / "large.f16.gguf").read_bytes()
    with hub_server() as hub:
        hub.repos[REPO] = Repo({"Tiny-Q4_K_M.gguf": data}, parameters=1_000_000)
        session.env["HF_ENDPOINT"] = hub.url
        yield hub
        hub.released.set()


def start_pull(session: TerminalSession, app: AppTerminal) -> None:
    """Begin to download the repository's file."""
    go(session, app, "library")
    app.type("f")
    app.until_shown("Words of a name")
    app.look(0.5)
    app.type(REPO)
    app.until_shown(REPO)
    app.type(ENTER)
    app.until_shown("Q4_K_M")
    app.type(ENTER)
    app.until(session.downloads)


def download_state(session: TerminalSession) -> str:
    return str(session.downloads()[0]["state"]) if session.downloads() else ""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start_quantizing(session: TerminalSession, app: AppTerminal) -> None:
    """Begin to quantize the last source of the library."""
    go(session, app, "library")
    app.until_shown("guide")
    app.look(0.5)
    app.type(f"{DOWN}z")
    app.until(lambda: current_screen(app) == "quantize")
    app.until(lambda: re.search(r"Q4_K_M +[\d.]+ MB", app.text))
    app.type("q")
    app.until_shown("Q4_K_M.gguf (")
    app.type("y")


# ---- chatting


@task
def start(session: TerminalSession, models: Path) -> None:
    with opened(session) as app:
        session.agree(app)
        assert session.stats() is None or not session.stats().workers
        assert "guide" in app.text.lower() or "SmolLM2" in app.text
    assert session.titles() == []


@task
def ask_a_question(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        assert session.answer(QUESTION).content
        ask(session, app, "And how do I delete one?", title=QUESTION)
        assert len(session.messages(QUESTION)) == 4


@task
def stop_an_answer(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        stop(session, app, "hello")
        app.until_shown("Stopped")
        kept = session.answer("hello").content
    assert session.answer("hello").content == kept


@task
def continue_a_stopped_answer(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        stop(session, app, "hello")
        kept = session.answer("hello").content
        command(app, "/continue")
        app.until(lambda: len(session.answer("hello").content) > len(kept))
        session.agree(app)
        stop(session, app, "hello")
        assert session.answer("hello").content.startswith(kept)


@task
def ask_for_another_answer(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        command(app, "/retry")
        app.until_shown("2/2")
        app.until(lambda: session.answer(QUESTION).state == "complete")
        session.agree(app)
        assert len(session.answer(QUESTION).siblings) == 2


@task
def edit_a_question(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        command(app, "/edit")
        app.until_shown("Edit (user)")
        app.type(" Please")
        app.until_shown("model? Please")
        app.type(control("s"))
        app.until_shown("2/2")
        app.until(lambda: session.answer(QUESTION) and session.answer(QUESTION).state == "complete")
        session.agree(app)
        assert session.messages(QUESTION)[0].content == f"{QUESTION} Please"


@task
def look_at_the_other_version(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        command(app, "/retry")
        app.until_shown("2/2")
        app.until(lambda: session.answer(QUESTION).state == "complete")
        second = session.answer(QUESTION).id
        app.type(control("t"))
        app.until_shown("e edit")
        app.type(LEFT)
        app.until_shown("1/2")
        session.agree(app)
        assert session.answer(QUESTION).id != second
        app.type(RIGHT)
        app.until_shown("2/2")
        session.agree(app)
        assert session.answer(QUESTION).id == second


@task
def branch_into_another_chat(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.type(control("t"))
        app.until_shown("e edit")
        app.type("b")
        app.until(lambda: len(session.titles()) == 2)
        session.chat = session.titles()[0]
        session.agree(app)
    with session.chats() as chats:
        first, second = (chats.path(thread.id) for thread in chats.threads())
    assert [one.content for one in first] == [one.content for one in second]


@task
def delete_a_message(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.type(control("t"))
        app.until_shown("e edit")
        app.type("d")
        app.until_shown("Delete this message")
        app.type("y")
        app.until(lambda: len(session.messages(QUESTION)) == 1)
        session.agree(app)


@task
def copy_an_answer(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.type(control("t"))
        app.until_shown("e edit")
        app.type("y")
        app.until(lambda: b"\x1b]52;" in app.sent)
        session.agree(app)


@task
def type_while_a_message_has_the_focus(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.type(control("t"))
        app.until_shown("e edit")
        app.type("/help me")
        app.until_shown("/help me")
        assert "Edit (" not in app.text
        session.agree(app)


@task
def search_in_all_chats(session: TerminalSession, models: Path) -> None:
    with session.chats() as chats:
        thread = chats.create(title="travel", model="guide")
        chats.add(thread.id, None, "user", "Which tram goes to Belém?")
    with opened(session, "chat", "guide") as app:
        app.type(control("f"))
        app.until_shown("esc close")
        app.type("belem")
        app.until_shown("Belém")
        app.type(ENTER)
        app.until_shown("Which tram goes to Belém?")
        app.until_ready()
        session.chat = "travel"
        session.agree(app)


@task
def search_for_what_is_not_there(session: TerminalSession, models: Path) -> None:
    with opened(session) as app:
        app.type(control("f"))
        app.until_shown("esc close")
        app.type("zebra")
        app.until(lambda: re.search(r"[Nn]othing|[Nn]o match|[Nn]o chat|0 found", app.text))
        app.type(ESCAPE)
        app.until_ready()
        session.agree(app)


@task
def switch_among_ten_chats(session: TerminalSession, models: Path) -> None:
    titles = ten_chats(session)
    with opened(session) as app:
        for title in titles:
            app.type(ALT_DOWN)
            app.until_shown(f"The question of {title}")
            session.chat = title
            session.agree(app)
        app.type(ALT_UP)
        session.chat = titles[-2]
        app.until_shown(f"The question of {titles[-2]}")
        session.agree(app)


@task
def rename_a_chat(session: TerminalSession, models: Path) -> None:
    ten_chats(session)
    with opened(session) as app:
        app.type(ALT_DOWN)
        app.until_shown("The question of chat number 9")
        command(app, "/rename downloads")
        app.until(lambda: session.thread("downloads"))
        session.chat = "downloads"
        session.agree(app)


@task
def delete_a_chat(session: TerminalSession, models: Path) -> None:
    ten_chats(session)
    with opened(session) as app:
        app.type(ALT_DOWN)
        app.until_shown("The question of chat number 9")
        command(app, "/delete")
        app.until_shown("Delete “chat number 9”?")
        app.type("y")
        app.until(lambda: len(session.titles()) == 9)
        session.agree(app)
        assert "The question of chat number 9" not in app.text
    assert b"question of chat number 9" not in session.paths.chats_file.read_bytes()


@task
def two_answers_at_once(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        app.type(control("n"))
        app.until(lambda: "hello" not in session_area(app))
        ask_endless(session, app, "second")
        before = len(session.answer("hello").content)
        app.until(lambda: len(session.answer("hello").content) > before)
        app.type(ALT_DOWN)
        session.chat = "hello"
        session.agree(app)
        stop(session, app, "hello")
        assert session.answer("second").state == "streaming"
        app.type(ALT_UP)
        session.chat = "second"
        session.agree(app)
        stop(session, app, "second")


def session_area(app: AppTerminal) -> str:
    """The part of the screen with the messages."""
    first = 30 if app.drawn.columns >= 100 else 0
    return "\n".join(line[first:] for line in app.text.splitlines()[1:])


# ---- keys and commands


@task
def f_keys_from_every_focus(session: TerminalSession, models: Path) -> None:
    """From each widget that Tab reaches, on each screen, to each other screen."""
    ten_chats(session)
    with opened(session) as app:
        session.chat = None
        for screen in SCREENS:
            for tabs in range(6):
                for other in (one for one in SCREENS if one != screen):
                    app.type(F_KEYS[SCREENS.index(screen) + 2])
                    app.until(lambda here=screen: current_screen(app) == here)
                    app.type(TAB * tabs)
                    app.type(F_KEYS[SCREENS.index(other) + 2])
                    app.until(lambda there=other: current_screen(app) == there)
            session.agree(app)
        app.type(F_KEYS[2])
        app.until(lambda: current_screen(app) == "chat")


@task
def f_keys_from_a_message_and_from_the_prompt(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        for other in SCREENS[1:]:
            app.type("some words")
            app.until_shown("some words")
            go(session, app, other)
            go(session, app, "chat")
            app.until_shown("some words")
            app.type("\x7f" * 10)
            app.until(lambda: "some words" not in app.text)
            app.type(control("t"))
            app.until_shown("e edit")
            go(session, app, other)
            go(session, app, "chat")
            app.type(ESCAPE)
            app.until_ready()


@task
def the_help_of_every_screen(session: TerminalSession, models: Path) -> None:
    with opened(session) as app:
        for name in SCREENS:
            go(session, app, name)
            app.type(F_KEYS[1])
            app.until(lambda: re.search(r"[Ff]1|Keys|keys", app.text))
            app.type(ESCAPE)
            app.until(lambda here=name: current_screen(app) == here)
        go(session, app, "chat")


@task
def a_wrong_command(session: TerminalSession, models: Path) -> None:
    with opened(session) as app:
        app.say("/modle guide")
        app.until_shown("/model?")
        app.look(1.5)
        assert "/model?" in app.text, "the error vanished before the next key"
        session.agree(app)
        assert session.titles() == []


@task
def an_unknown_setting(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        app.say("/set temprature 0.2")
        app.until_shown("temperature")
        app.look(1.5)
        assert "temperature" in app.text
        session.agree(app)


@task
def settings_of_a_chat_in_the_status_line(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        app.say("/set temperature 0.25")
        app.until_shown("0.25")
        app.say("/system Answer briefly.")
        app.until_shown("system")
        ask(session, app)
        assert "system" in app.text
    thread = session.thread(QUESTION)
    assert thread.system == "Answer briefly." and thread.settings["set"]["temperature"] == 0.25


@task
def an_answer_in_json(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        app.say("/json on")
        app.until_shown("JSON")
        ask(session, app)
        assert session.answer(QUESTION).content.lstrip()[:1] in tuple('{["-0123456789tfn')


@task
def a_question_to_guide_from_another_chat(session: TerminalSession, models: Path) -> None:
    def other_title() -> str:
        return next(one for one in session.titles() if one != "hello")

    with endless(session, models) as app:
        stop(session, app, "hello")
        app.say("? how do I download a model")
        app.until(lambda: len(session.titles()) == 2)
        app.until(lambda: session.answer(other_title()) is not None)
        app.until(lambda: session.answer(other_title()).state == "complete")
        session.chat = other_title()
        session.agree(app)
        assert session.thread("hello").model.endswith("endless.gguf")


@task
def drafts_belong_to_chats(session: TerminalSession, models: Path) -> None:
    ten_chats(session)
    with opened(session) as app:
        app.type(ALT_DOWN)
        app.until_shown("The question of chat number 9")
        app.type("half a thought")
        app.until_shown("half a thought")
        app.type(ALT_DOWN)
        app.until_shown("The question of chat number 8")
        app.until(lambda: "half a thought" not in app.text)
        session.chat = "chat number 8"
        session.agree(app)
        app.type(ALT_UP)
        app.until_shown("half a thought")
    with opened(session) as app:
        app.type(ALT_DOWN)
        app.until_shown("half a thought")


# ---- files


@task
def attach_a_file(session: TerminalSession, models: Path) -> None:
    notes = session.home.parent / "notes.txt"
    notes.write_text("The secret word is marmalade.\n" * 5)
    with opened(session, "chat", "guide") as app:
        app.say(f"Read this @{notes}")
        app.until(lambda: [session.answer(title) for title in session.titles()] not in ([], [None]))
        app.until(lambda: session.answer(session.titles()[0]).state == "complete")
        session.chat = session.titles()[0]
        session.agree(app)
        assert "marmalade" in session.messages(session.chat)[0].content
        assert app.text.count("marmalade") <= 1, "the attachment is not folded"


@task
def attach_too_large_a_file(session: TerminalSession, models: Path) -> None:
    book = session.home.parent / "book.txt"
    book.write_text("A word after a word after a word is power.\n" * 1500)
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.type(f"Read this @{book} ")
        app.until(lambda: re.search(r"too (large|long)|does not fit|over|exceed|cut", app.text))
        app.type("\x7f" * 200)
        app.until(lambda: "book.txt" not in app.text)
        session.agree(app)
        ask(session, app, "And now?", title=QUESTION)


@task
def attach_a_file_that_is_not_there(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        app.say("Read this @./no/such/file.txt")
        app.until_shown("There is no file")
        session.agree(app)
        assert session.titles() == [] and "Read this" in app.text


@task
def paste_many_lines(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        lines = "\r".join(f"line {number}" for number in range(200))
        app.type(f"\x1b[200~{lines}\x1b[201~")
        app.until_shown("line 199")
        session.agree(app)
        assert session.titles() == []


@task
def export_and_import(session: TerminalSession, models: Path) -> None:
    file = session.home.parent / "chat.json"
    with opened(session, "chat", "guide") as app:
        ask(session, app)
        app.say(f"/export json {file}")
        app.until(file.exists)
        app.until(lambda: "/export" not in app.text)
        app.say(f"/import {file}")
        app.until(lambda: len(session.titles()) == 2)
        session.agree(app)


# ---- the library


@task
def a_dead_hub(session: TerminalSession, models: Path) -> None:
    session.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    with opened(session) as app:
        go(session, app, "library")
        app.type("f")
        app.until_shown("Words of a name")
        app.look(0.5)
        app.type("qwen3")
        app.until_shown("qwen3")
        app.type(ENTER)
        app.until(lambda: re.search(r"127\.0\.0\.1:9|cannot be reached|unreachable", app.text))
        app.look(1.5)
        assert re.search(r"127\.0\.0\.1:9|cannot be reached|unreachable", app.text)
        session.agree(app)


@task
def pull_with_a_dropped_connection(session: TerminalSession, models: Path) -> None:
    with hub_of(session, models) as hub:
        hub.faults.append(Fault("break", "Tiny-Q4_K_M.gguf", at=300_000, times=3))
        with opened(session) as app:
            start_pull(session, app)
            app.until(lambda: download_state(session) == "done")
            session.agree(app)
    (blob,) = (session.home / "hub").glob("models--org--Tiny-GGUF/blobs/*")
    assert digest(blob) == digest(models / "large.f16.gguf") == blob.name


@task
def pause_and_resume_a_download(session: TerminalSession, models: Path) -> None:
    with hub_of(session, models) as hub:
        hub.faults.append(Fault("stall", "Tiny-Q4_K_M.gguf", at=200_000, times=99))
        with opened(session) as app:
            start_pull(session, app)
            app.until(lambda: download_state(session) == "running")
            session.agree(app)
            go(session, app, "chat")
            go(session, app, "library")
            app.type(" ")
            app.until(lambda: download_state(session) == "paused")
            session.agree(app)
            hub.faults.clear()
            hub.released.set()
            app.type(" ")
            app.until(lambda: download_state(session) == "done")
            session.agree(app)


@task
def two_apps_and_one_download(session: TerminalSession, models: Path) -> None:
    """The one that is left goes on with the queue."""
    with hub_of(session, models) as hub:
        hub.faults.append(Fault("stall", "Tiny-Q4_K_M.gguf", at=200_000, times=99))
        first = session.open()
        with opened(session) as second:
            session.chat = ""
            start_pull(session, first)
            first.until(lambda: download_state(session) == "running")
            session.agree(second)
            assert first.leave() == 0
            hub.faults.clear()
            hub.released.set()
            second.until(lambda: download_state(session) == "done")
            session.agree(second)


@task
def two_apps_and_one_history(session: TerminalSession, models: Path) -> None:
    first = session.open("chat", "guide")
    with opened(session, "chat", "guide") as second:
        ask(session, first)
        session.chat = ""
        second.type(ALT_DOWN)
        second.until(lambda: QUESTION in second.text)
        session.chat = QUESTION
        session.agree(second)
        assert first.leave() == 0
        ask(session, second, "And how do I delete one?", title=QUESTION)


@task
def quantize(session: TerminalSession, models: Path) -> None:
    with opened(session) as app:
        start_quantizing(session, app)
        app.until(lambda: list(session.paths.models.glob("*Q4_K_M.gguf")))
        app.until_shown("in the library")
        session.agree(app)
        go(session, app, "library")
        app.until_shown("Q4_K_M")


@task
def kill_and_resume_a_quantization(session: TerminalSession, models: Path) -> None:
    """App and job are killed; the result has the bytes of one that was not."""
    source = session.paths.models / "large.f16.gguf"
    source.parent.mkdir(parents=True)
    os.link(models / "large.f16.gguf", source)
    app = session.open()
    start_quantizing(session, app)
    app.until(lambda: session.processes("hearth.app.library.quantize_job"))
    app.until(lambda: any(one.stat().st_size for one in session.paths.models.glob(".*.part")))
    os.kill(app.pid, signal.SIGKILL)
    for process in session.processes("hearth.app.library.quantize_job"):
        process.kill()
    app.terminal.finish()
    assert not list(session.paths.models.glob("*Q4_K_M.gguf"))
    with opened(session) as app:
        start_quantizing(session, app)
        app.until(lambda: list(session.paths.models.glob("*Q4_K_M.gguf")))
        session.agree(app)
    (made,) = session.paths.models.glob("*Q4_K_M.gguf")
    expected = models / "expected.gguf"
    if not expected.exists():
        command = ["quantize", str(source), "Q4_K_M", "--no-check", "-o", str(expected)]
        environ = {**os.environ, "HEARTH_HOME": str(models / "home")}
        subprocess.run([*HEARTH, *command], env=environ, check=True, capture_output=True)
    assert digest(made) == digest(expected)


# ---- the engine


@task
def look_at_the_engine_and_unload(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        go(session, app, "engine")
        app.until_shown("endless", "hello")
        session.agree(app)
        go(session, app, "chat")
        stop(session, app, "hello")
        go(session, app, "engine")
        app.type("u")
        app.until(lambda: not session.stats() or not session.stats().workers)
        session.agree(app)
        go(session, app, "chat")


@task
def a_killed_worker(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        session.kill("hearth.backends.worker")
        app.until(lambda: session.answer("hello").state == "failed")
        app.until_shown(session.answer("hello").error[:20])
        session.agree(app)
        command(app, "/set max_tokens 5")
        app.say("again")
        app.until(lambda: session.messages("hello")[-1].finish_reason == "length")
        session.agree(app)


@task
def a_killed_host(session: TerminalSession, models: Path) -> None:
    with endless(session, models) as app:
        session.kill("hearth.backends.host")
        app.until(lambda: session.answer("hello").state == "failed")
        session.agree(app)
        command(app, "/set max_tokens 5")
        app.say("again")
        app.until(lambda: session.messages("hello")[-1].finish_reason == "length")
        session.agree(app)


@task
def compare_two_models(session: TerminalSession, models: Path) -> None:
    with opened(session, "chat", "guide") as app:
        command(app, "/compare guide-draft")
        app.until_shown("guide-draft")
        session.chat = None
        app.type("What fits?")
        app.until_shown("What fits?")
        app.type(ENTER)
        app.until(lambda: app.text.count("tok/s") >= 2)
        session.agree(app)
        app.type(ESCAPE)
        app.until_ready()


# ---- the terminal


@task
def resize_while_an_answer_streams(session: TerminalSession, models: Path) -> None:
    size = session.size
    with endless(session, models) as app:
        for other in ((60, 20), (140, 45), size):
            session.size = other
            app.resize(other)
            app.until(lambda: current_screen(app) == "chat")
            session.agree(app)
        stop(session, app, "hello")


@task
def suspend_and_go_on(session: TerminalSession, models: Path) -> None:
    """In a shell with jobs; after `fg` nothing is sent to the model."""
    shell = session.shell()
    shell.until_shown("$")
    shell.type(f"{sys.executable} -m hearth.app.cli.main chat guide\r")
    shell.until_ready()
    session.chat = ""
    ask(session, shell)
    shell.say("/suspend")
    shell.until(lambda: b"Stopped" in after_the_app(shell))
    foreground(shell)
    shell.until_ready()
    session.agree(shell)
    assert len(session.messages(QUESTION)) == 2
    go(session, shell, "engine")
    shell.type(control("z"))
    shell.until(lambda: b"Stopped" in after_the_app(shell))
    foreground(shell)
    shell.until(lambda: current_screen(shell) == "engine")
    session.agree(shell)
    shell.type(control("q"))
    shell.until(lambda: after_the_app(shell).rstrip().endswith(b"$"))
    shell.type("exit\r")
    assert shell.terminal.finish() == 0


def foreground(shell: AppTerminal) -> None:
    """Go on with the app that was suspended."""
    shell.type("fg\r")
    shell.until(lambda: not after_the_app(shell))


def after_the_app(shell: AppTerminal) -> bytes:
    """What was sent since the app left the screen; empty while it has it."""
    rest = shell.sent.rpartition(ALTERNATE_OFF.encode())[2]
    return b"" if ALTERNATE_ON.encode() in rest else rest


@task
def quit_while_an_answer_streams(session: TerminalSession, models: Path) -> None:
    """The app asks; what came is kept."""
    app = endless_app(session, models)
    app.type(control("q"))
    app.until(lambda: re.search(r"[Ss]top", app.text) and "hello" in app.text)
    app.until_shown("Wait")
    assert session.answer("hello").state == "streaming"
    session.agree(app)
    app.type(ESCAPE)
    app.until(lambda: "Wait" not in app.text)
    session.agree(app)
    app.type(control("q"))
    app.until_shown("Wait")
    app.type(RIGHT * 2 + ENTER)
    assert app.terminal.finish() == 0
    app.check_left()
    assert session.answer("hello").state == "stopped" and session.answer("hello").content


@task
def end_by_a_signal_while_an_answer_streams(session: TerminalSession, models: Path) -> None:
    """SIGTERM does not ask."""
    app = endless_app(session, models)
    os.kill(app.pid, signal.SIGTERM)
    assert app.terminal.finish() == 128 + signal.SIGTERM
    app.check_left()
    assert session.answer("hello").state == "stopped" and session.answer("hello").content


@task
def a_killed_app(session: TerminalSession, models: Path) -> None:
    app = endless_app(session, models)
    app.until(lambda: len(session.answer("hello").content) > 50)
    os.kill(app.pid, signal.SIGKILL)
    app.terminal.finish()
    kept = session.answer("hello").content
    assert len(kept) > 50
    with opened(session) as app:
        app.type(ALT_DOWN)
        app.until_shown("Stopped")
        session.chat = "hello"
        session.agree(app)
        assert session.answer("hello").content == kept
