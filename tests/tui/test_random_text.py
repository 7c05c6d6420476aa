"""10,000 random strings: none of them breaks the app."""

from __future__ import annotations

import random
from collections.abc import Iterator

from async_tests import in_loop
from harmless import check, pages
from hearth.app.tui.screens.dialogs import AskLine, Confirm, EditText, PickOne
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.message import Shown
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.backends.contract.messages import ToolCall
from pilots import chat_of, opened, transcript_of, unfold, until

_MARKUP = "[]/\\=@$#`*_~|<>(){}\"'!&;:-+.0123456789 \n\t"
_RANGES = (
    (0x00, 0xFF),
    (0x0300, 0x036F),
    (0x0590, 0x08FF),
    (0x2000, 0x206F),
    (0x3000, 0x30FF),
    (0xD800, 0xDFFF),
    (0xFE00, 0xFFFF),
    (0x1F300, 0x1FAFF),
    (0xE0000, 0xE01EF),
    (0x00, 0x10FFFF),
)


def strings(count: int, seed: int, most: int = 60) -> Iterator[str]:
    """Random strings: half of them of characters with a meaning in Markdown or markup, the others
    of any characters, including controls and lone surrogates.
    """
    drawn = random.Random(seed)
    for _ in range(count):
        yield "".join(
            drawn.choice(_MARKUP)
            if drawn.random() < 0.5
            else chr(drawn.randint(*drawn.choice(_RANGES)))
            for _ in range(drawn.randint(0, most))
        )


@in_loop
async def test_messages(services: Services) -> None:
    texts = iter(strings(6000, 1))
    async with opened(services, (80, 40)) as (app, pilot):
        transcript = transcript_of(pilot)
        for _ in range(10):
            shown = [
                Shown(
                    f"m{number}",
                    ("user", "assistant", "system", "tool")[number % 4],
                    "\n\n".join(next(texts) for _ in range(50)),
                    "\n".join(next(texts) for _ in range(5)),
                    calls=(ToolCall("", next(texts), next(texts)),),
                    note=next(texts),
                    numbers=next(texts),
                    model=next(texts),
                )
                for number in range(10)
            ]
            await transcript.show(shown)
            unfold(transcript)
            await pilot.pause()
            check(app)


@in_loop
async def test_an_answer_cut_anywhere(services: Services) -> None:
    drawn = random.Random(2)
    async with opened(services, (60, 30)) as (app, pilot):
        transcript = transcript_of(pilot)
        await transcript.show([Shown("a", "assistant", "", state="streaming")])
        answer = transcript.answer("a")
        for at, text in enumerate(strings(2500, 3)):
            cut = drawn.randint(0, len(text))
            for piece in (text[:cut], text[cut:]):
                answer.feed(piece, drawn.choice(("content", "content", "reasoning")))  # type: ignore[arg-type]
            if at % 100 == 0:
                answer.catch_up()
                await pilot.pause()
                check(app)
        await transcript.replace(Shown("a", "assistant", answer.content, answer.reasoning))
        await pilot.pause()
        check(app)


@in_loop
async def test_titles(services: Services) -> None:
    for title in strings(500, 4):
        services.chats.create(title=title.encode("utf-8", "replace").decode())
    async with opened(services, (120, 60)) as (app, pilot):
        threads = app.screen.query_one(ThreadList)
        await until(pilot, lambda: sum(bool(one.id) for one in threads.options) == 500)
        await pages(pilot, threads)


@in_loop
async def test_notices_and_the_prompt_box(services: Services) -> None:
    async with opened(services, (80, 40)) as (app, pilot):
        chat = chat_of(pilot)
        for at, text in enumerate(strings(800, 5)):
            chat.prompt.load(text)
            chat.prompt.set_hint(text)
            if at % 16 == 0:
                app.clear_notifications()
                chat.show_notice(text)
                await pilot.pause()
            if at % 16 == 8:
                check(app)


@in_loop
async def test_dialogs(services: Services) -> None:
    texts = iter(strings(1000, 7))
    async with opened(services, (80, 40)) as (app, pilot):
        for _ in range(8):
            options = list(dict.fromkeys(next(texts) for _ in range(80)))
            for screen in (
                Confirm(next(texts), next(texts), yes=next(texts), no=next(texts)),
                AskLine(next(texts), next(texts), placeholder=next(texts)),
                PickOne(next(texts), options, details={options[0]: next(texts)}),
                EditText(next(texts), "\n".join(next(texts) for _ in range(20))),
            ):
                if len(app.screen_stack) == 1:
                    app.push_screen(screen)
                else:  # The chat below it need not be shown in between.
                    app.switch_screen(screen)
                await pilot.pause()
                assert app.screen is screen
                check(app)
