"""The terminal app in a terminal, and the contents of its host, history and downloads: `agree`
compares the screen with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from drawn import AppTerminal
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.host_connection import HostConnection
from hearth.app.paths import find_paths
from hearth.backends.contract.loaded import HostStats

ESCAPE, TAB, ENTER = "\x1b", "\t", "\r"
UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"
ALT_DOWN, ALT_UP = "\x1b[1;3B", "\x1b[1;3A"
F_KEYS = {1: "\x1bOP", 2: "\x1bOQ", 3: "\x1bOR", 4: "\x1bOS"} | {
    number: f"\x1b[{code}~" for number, code in zip(range(5, 9), (15, 17, 18, 19), strict=True)
}
SCREENS = ("chat", "library", "quantize", "engine", "endpoint", "settings", "doctor")
"""Screens in the order of their keys, from F2 on."""
SIDEBAR_FROM, SIDEBAR_COLUMNS = 100, 28
"""The list of chats is shown from this terminal width on, and its own width, in columns."""
NOTHING_LOADED = (
    "No models loaded",
    "No models are loaded",
    "No model is loaded",
    "None is loaded",
)
AGREE_WITHIN_S = 10.0


def control(letter: str) -> str:
    """The key with Ctrl."""
    return chr(ord(letter.upper()) - 64)


@dataclass
class TerminalSession:
    """Apps in terminals of one size over one home, whose processes end with `close`.

    Attributes:
        env: of every app.
        chat: title of the chat that is open in the app; empty: a new one; None: not compared.
    """

    home: Path
    size: tuple[int, int]
    env: dict[str, str] = field(default_factory=dict)
    chat: str | None = None
    samples: int = 0
    _apps: list[AppTerminal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = find_paths({"HEARTH_HOME": str(self.home)})

    # ---- the app

    def open(self, *arguments: str, **env: str) -> AppTerminal:
        """Start the app and wait for its prompt."""
        app = self._start(arguments, env)
        app.until_ready()
        return app

    def shell(self) -> AppTerminal:
        """Start a shell with job control; its prompt is "$ "."""
        return self._start((), {"PS1": "$ "}, ("bash", "--norc", "--noprofile", "-i"))

    def _start(
        self, arguments: Sequence[str], env: dict[str, str], command: Sequence[str] = ()
    ) -> AppTerminal:
        given = {
            "HEARTH_HOME": str(self.home),
            "HEARTH_KEEP_ALIVE_S": "60",
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_HUB_OFFLINE": "0",
            "COLORTERM": "truecolor",
            **self.env,
            **env,
        }
        app = AppTerminal(arguments, given, command=command, size=self.size)
        self._apps.append(app)
        return app

    def close(self) -> None:
        """End every process of this home."""
        for app in self._apps:
            app.terminal.close()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def processes(self, *words: str) -> list[psutil.Process]:
        """The processes of this home whose command line has one of `words`, or all."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if process.environ().get("HEARTH_HOME") != str(self.home) and not any(
                    word.startswith(str(self.home)) for word in line
                ):
                    continue
                if process.pid != os.getpid() and (not words or set(words) & set(line)):
                    found.append(process)
        return found

    def kill(self, module: str) -> None:
        """Kill the processes that run `module`; fails if there are none."""
        found = self.processes(module)
        assert found, f"no process runs {module}"
        for process in found:
            process.send_signal(signal.SIGKILL)

    # ---- what is true

    def stats(self) -> HostStats | None:
        """The state of the host; None if there is no host."""

        async def ask() -> HostStats | None:
            connection = HostConnection(self.paths.host_place(), 1.0)
            try:
                return await connection.stats()
            finally:
                await connection.close()

        return asyncio.run(ask())

    def downloads(self) -> list[dict[str, Any]]:
        """The queue of downloads on the disk."""
        try:
            found = json.loads(self.paths.downloads_file.read_text("utf-8"))["downloads"]
        except FileNotFoundError:
            return []
        assert isinstance(found, list)
        return found

    @contextlib.contextmanager
    def chats(self) -> Iterator[ChatStore]:
        """The history."""
        with contextlib.closing(ChatStore(self.paths.chats_file)) as chats:
            yield chats

    def thread(self, title: str) -> Thread | None:
        """The chat with this title, archived or not."""
        with self.chats() as chats:
            for archived in (False, True):
                for thread in chats.threads(archived=archived):
                    if thread.title == title:
                        return thread
        return None

    def titles(self) -> list[str]:
        """Titles of the chats in the list."""
        with self.chats() as chats:
            return [thread.title for thread in chats.threads()]

    def messages(self, title: str) -> list[ChatMessage]:
        """The shown branch of the chat with this title; empty while there is none."""
        thread = self.thread(title)
        if thread is None:
            return []
        with self.chats() as chats:
            return chats.path(thread.id)

    def answer(self, title: str) -> ChatMessage | None:
        """The last answer in the chat with this title."""
        found = self.messages(title)
        return found[-1] if found and found[-1].role == "assistant" else None

    # ---- both

    def agree(self, app: AppTerminal) -> None:
        """Fail unless the screen comes to agree with the host, the history and the downloads."""
        until = time.monotonic() + AGREE_WITHIN_S
        while different := self.differences(app):
            if time.monotonic() > until:
                stats = self.stats()
                pytest.fail("\n".join([*different, f"the terminal:\n{app.text}", f"{stats}"]))
            app.look(0.1)
        self.samples += 1

    def differences(self, app: AppTerminal) -> list[str]:
        """The differences between the screen and the actual state, one sentence each."""
        app.look(0.0)
        stats, text = self.stats(), app.text
        workers = stats.workers if stats is not None else ()
        where = current_screen(app)
        found = []
        if where is None:
            found.append("no tab of the top bar is marked")
        ready = [worker.name for worker in workers if worker.info is not None]
        if ready and any(words in text for words in NOTHING_LOADED):
            found.append(f"the screen denies that {ready} are loaded")
        if "Traceback" in text:
            found.append("there is a traceback on the screen")
        if where == "engine":
            found += [
                f"{worker.name} is not on the engine screen"
                for worker in workers
                if worker.name not in text
            ]
            running = sum(worker.running for worker in workers)
            if running and f"{running} running" not in text:
                found.append(f"{running} requests run, which the engine screen does not show")
            if not running and re.search(r"\d running", text):
                found.append("the engine screen shows requests that do not run")
        elif where == "chat" and self.chat is not None:
            found += self._chat_differences(app, workers)
        found += self._download_differences(app, where)
        return found

    def _chat_differences(self, app: AppTerminal, workers: Sequence[Any]) -> Iterator[str]:
        text = app.text
        thread = self.thread(self.chat or "")
        if self.chat and thread is None:
            yield f"there is no chat {self.chat!r}: {self.titles()}"
            return
        ident = thread.id if thread is not None else ""
        yield from self._sidebar_differences(app)
        asked = [
            request
            for worker in workers
            if worker.engine is not None
            for request in worker.engine.requests
            if request.session == ident
        ]
        is_busy = any(words in text for words in ("answering", "reading the prompt"))
        if bool(asked) != is_busy:
            yield f"{len(asked)} requests of this chat run; the status line: {is_busy}"
        loading = any(worker.info is None for worker in workers)
        if not loading and "loading the model" in text.lower():
            yield "the status line says that a model is loading, and none is"
        if thread is None or asked:
            return
        messages = self.messages(thread.title)
        numbers = [one.numbers for one in messages if one.numbers and one.numbers.prompt_tokens]
        shown = context_fill(text)
        if numbers and shown is not None:
            used = numbers[-1].prompt_tokens + numbers[-1].completion_tokens
            contexts = {worker.info.context for worker in workers if worker.info is not None}
            if shown[0] != used or (contexts and shown[1] not in contexts):
                yield f"the context bar shows {shown}; used are {used} of {contexts}"
        if numbers and shown is None and any(worker.info for worker in workers):
            yield "the context bar shows no numbers"

    def _sidebar_differences(self, app: AppTerminal) -> Iterator[str]:
        """The list of chats is shown where it has room, and its highlight is the open chat."""
        if self.size[0] < SIDEBAR_FROM:
            return
        titles = self.titles()
        rows = sidebar(app)
        if not titles:
            return
        shown = [line for line, _ in rows if any(same_title(line, title) for title in titles)]
        if not shown:
            yield f"no chat of {titles} is in the list: {[line for line, _ in rows]}"
        marked = [line for line, is_marked in rows if is_marked and line]
        of_chats = [line for line in marked if any(same_title(line, one) for one in titles)]
        if self.chat and not (len(of_chats) == 1 and same_title(of_chats[0], self.chat)):
            yield f"{self.chat!r} is open; the list highlights {marked}"
        if not self.chat and any(same_title(line, title) for line in marked for title in titles):
            yield f"no chat is open yet; the list highlights {marked}"

    def _download_differences(self, app: AppTerminal, where: str | None) -> Iterator[str]:
        running = [item for item in self.downloads() if item["state"] == "running"]
        bar = app.drawn.lines[0]
        if running and not re.search(r"\d+ ?%|↓", bar):
            yield f"{running[0]['name']} is downloaded, which the top bar does not show: {bar}"
        if not running and "↓" in bar:
            yield f"nothing is downloaded; the top bar: {bar}"


def same_title(line: str, title: str) -> bool:
    """Whether a line of the list is that of the chat with this title, perhaps truncated."""
    line = re.sub(r"^[^\w/?]+", "", line.strip())
    begin = line.split("…")[0].strip()
    return bool(begin) and title.startswith(begin[:20])


def sidebar(app: AppTerminal) -> list[tuple[str, bool]]:
    """The lines of the list of chats, and whether each is highlighted."""
    drawn = app.drawn
    rows = range(1, len(drawn.lines) - 1)
    usual = Counter(drawn.background(row, 2) for row in rows).most_common(1)[0][0]
    return [
        (drawn.lines[row][:SIDEBAR_COLUMNS].rstrip(), drawn.background(row, 2) != usual)
        for row in rows
    ]


def current_screen(app: AppTerminal) -> str | None:
    """The name of the screen that the top bar marks; None if it marks none."""
    drawn = app.drawn
    line = drawn.lines[0]
    behind = [drawn.background(0, column) for column in range(drawn.columns)]
    usual = Counter(behind).most_common(1)[0][0]
    marked = [name for name in SCREENS if name in line and behind[line.index(name)] != usual]
    return marked[0] if len(marked) == 1 else None


def context_fill(text: str) -> tuple[int, int] | None:
    """Used tokens and the size of the context, from the status line."""
    found = re.search(r"([\d,]+)(?: \+ [\d,]+)? of ([\d,]+)(?: tokens)? \(\d+%\)", text)
    if found is None:
        return None
    used, context = (int(number.replace(",", "")) for number in found.groups())
    return used, context
