"""Foreign texts reach the terminal only as text, wherever the app shows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList

from async_tests import in_loop
from harmless import ALL, LARGE, MARKUP, ONE_LINE, check, chunks, messages, pages
from hearth.app.tui.screens.dialogs import AskLine, Confirm, EditText, PickOne
from hearth.app.tui.screens.search import SearchScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.message import Shown
from hearth.backends.contract.messages import ToolCall
from hearth.backends.errors import HearthError, WorkerDied
from pilots import ask, chat_of, opened, say, transcript_of, unfold, until, until_shown
from scripted import Script, ScriptedHost, failing

TALL = (140, 120)
WORDS = 40
"""Words of a streaming answer between two checks."""
FEW = 40
"""The number of payloads in one text, where each text takes a separate widget, file or request."""


# ---- messages


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
@in_loop
async def test_messages(services: Services, role: str) -> None:
    async with opened(services, LARGE) as (_, pilot):
        transcript = transcript_of(pilot)
        texts = list(chunks(ALL, 60))
        await transcript.show(
            [
                Shown(f"m{at}", role, text, note=ALL[at], numbers=ALL[-at - 1], model=ALL[at + 9])
                for at, text in enumerate(texts)
            ]
        )
        await messages(pilot, transcript)


@in_loop
async def test_markup_in_messages_is_shown_as_it_is(services: Services) -> None:
    async with opened(services, TALL) as (app, pilot):
        transcript = transcript_of(pilot)
        await transcript.show([Shown("m", "user", "\n\n".join(MARKUP))])
        await pilot.pause()
        check(app, *(text for text in MARKUP if len(text) < 80))


@in_loop
async def test_thoughts_and_calls(services: Services) -> None:
    calls = tuple(ToolCall("", name, text) for name, text in zip(ALL[::2], ALL[1::2], strict=False))
    arguments = json.dumps({text: text for text in ALL}, ensure_ascii=False)
    async with opened(services, LARGE) as (_, pilot):
        transcript = transcript_of(pilot)
        await transcript.show(
            [
                Shown("m", "assistant", "", "\n".join(ALL), calls=calls[:FEW]),
                Shown("n", "assistant", "", "", calls=(*calls[FEW:], ToolCall("", "x", arguments))),
            ]
        )
        unfold(transcript)
        await messages(pilot, transcript)


@in_loop
async def test_an_answer_as_it_streams(services: Services, host: ScriptedHost) -> None:
    text = "\n\n".join(ALL)
    calls = [(ALL[3], ALL[7]), (ALL[100], json.dumps({ALL[50]: ALL[60]}))]
    words = asyncio.Semaphore(0)
    host.scripts["guide"] = Script(text, reasoning=text, calls=calls, gate=words)
    async with opened(services, (100, 100)) as (app, pilot):
        chat = chat_of(pilot)
        await say(pilot, text)
        await until(pilot, lambda: chat.session is not None and chat.session.is_busy)
        session = chat.session
        assert session is not None
        while session.is_busy:
            for _ in range(WORDS):
                words.release()
            await pilot.pause()
            unfold(chat.transcript)
            check(app)
        await messages(pilot, chat.transcript)
        assert session.messages[-1].content == text


# ---- chats


@in_loop
async def test_titles_of_chats(services: Services) -> None:
    for text in reversed(ALL):  # The newest is first.
        services.chats.create(title=text)
    async with opened(services, LARGE) as (app, pilot):
        await until_shown(pilot, "[link=")
        check(app, *(text for text in MARKUP if len(text) < 20))


@in_loop
async def test_what_a_search_finds(services: Services) -> None:
    for part in range(0, len(ALL), 10):
        thread = services.chats.create(title=f"needle {ALL[part]}")
        for text in ALL[part : part + 10]:
            services.chats.add(thread.id, None, "user", f"{text} needle {text}")
    async with opened(services, LARGE) as (app, pilot):
        app.push_screen(SearchScreen(services.chats, "needle"))
        await until_shown(pilot, "found")
        check(app)
        for text in ALL:
            app.screen.query_one(Input).value = text
            check(app)
        await pilot.pause(0.3)
        check(app)


@in_loop
async def test_a_chat_about_to_be_renamed_and_deleted(services: Services) -> None:
    async with opened(services, LARGE) as (app, pilot):
        await ask(pilot, "x")
        session = chat_of(pilot).session
        assert session is not None
        await session.change(title="".join(ALL[:FEW]))
        for command in ("/rename", "/delete"):
            await say(pilot, command)
            await until(pilot, lambda: len(app.screen_stack) > 1)
            await pilot.pause()
            check(app)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)


# ---- dialogs, notices, the prompt box


@pytest.mark.parametrize(
    "dialog",
    [
        lambda text: Confirm(text, text, yes=text[:30], no=text[:30]),
        lambda text: AskLine(text, text, placeholder=text),
        lambda text: AskLine(text, "", placeholder=text),
        lambda text: PickOne(text, ALL, details=dict.fromkeys(ALL, text[:50])),
        lambda text: EditText(text[:200], text),
    ],
    ids=["confirm", "ask", "ask-empty", "pick", "edit"],
)
@in_loop
async def test_dialogs(services: Services, dialog: Callable[[str], Any]) -> None:
    async with opened(services, (140, 60)) as (app, pilot):
        for text in chunks(ALL, 160):
            screen = app.push_screen(dialog(text))
            await pilot.pause()
            check(app)
            for scrolled in app.screen.query("TextArea, OptionList"):
                await pages(pilot, scrolled)
            app.pop_screen()
            await screen


@in_loop
async def test_markup_in_a_dialog_is_shown_as_it_is(services: Services) -> None:
    async with opened(services, TALL) as (app, pilot):
        text = "\n".join(MARKUP)
        for screen in (
            Confirm(text, ""),
            Confirm("", text),
            PickOne("", MARKUP),
            EditText("", text),
        ):
            app.push_screen(screen)
            await pilot.pause()
            for scrolled in app.screen.query(OptionList):
                scrolled.styles.max_height = 400
            await pilot.pause(0.05)
            check(app, *(text for text in MARKUP if len(text) < 80))
            app.pop_screen()


@in_loop
async def test_notices(services: Services) -> None:
    async with opened(services, LARGE) as (app, pilot):
        chat = chat_of(pilot)
        for text in (*chunks(ALL, 60), *MARKUP[::4]):
            app.clear_notifications()
            chat.show_error(HearthError(f"Begins. {text}", text))
            chat.show_notice("Begins.")
            await until_shown(pilot, "Begins.")
            check(app)
        app.clear_notifications()
        chat.show_notice("[red]a[/red]")
        await until_shown(pilot, "[red]a[/red]")


@in_loop
async def test_errors_of_hosts_and_workers(services: Services, host: ScriptedHost) -> None:
    async with opened(services, LARGE) as (app, pilot):
        for text in chunks(ALL, 60):
            host.scripts["guide"] = Script("said", error=WorkerDied(text, text))
            await ask(pilot, "x")
            await pilot.pause(0.05)
            check(app)
        host.backend = failing(HearthError("\n".join(MARKUP), MARKUP[0]))  # type: ignore[method-assign]
        await ask(pilot, "x")
        await pilot.pause(0.05)
        check(app)


@in_loop
async def test_slash_commands_and_attachments(services: Services, tmp_path: Path) -> None:
    async with opened(services, LARGE) as (app, pilot):
        chat_of(pilot).folder = tmp_path
        commands = ("model", "preset", "import", "schema", "set", "nonsense", "export", "search")
        for text in ALL[::60]:
            line = text.replace("\n", " ")
            for command in commands[:6]:
                await say(pilot, f"/{command} {line}")
                await pilot.pause()
            await say(pilot, f'look at @"{line}"')
            await pilot.pause(0.02)
            check(app)
            while len(app.screen_stack) > 1:
                app.pop_screen()
            app.clear_notifications()


@in_loop
async def test_the_prompt_box(services: Services, tmp_path: Path) -> None:
    for at, text in enumerate(ONE_LINE):
        name = text.replace("/", "").replace("\0", "")
        (tmp_path / f"a{at}{name}").touch()
    async with opened(services, LARGE) as (app, pilot):
        chat = chat_of(pilot)
        chat.folder = tmp_path
        for text in chunks(ALL, FEW):
            chat.prompt.load(text)
            chat.prompt.set_hint(text)
            await pilot.pause()
            check(app)
        chat.prompt.load("")
        await pilot.press(*"@a1")
        await pilot.pause(0.2)
        check(app)


@in_loop
async def test_what_is_pasted(services: Services) -> None:
    from textual.events import Paste

    async with opened(services, LARGE) as (app, pilot):
        chat_of(pilot).prompt.focus()
        for text in ALL:
            app.post_message(Paste(text))
        await pilot.pause(0.2)
        check(app)
        for name in ("library", "endpoint", "settings"):
            app.switch_mode(name)
            await pilot.pause(0.1)
            for field in app.screen.query(Input):
                field.post_message(Paste("\x1b]52;c;aGk=\x07[red]x[/] \u202eb \U000e0041"))
            await pilot.pause(0.1)
            check(app)
