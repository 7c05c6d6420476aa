"""Searching all chats, with the keys of the screen."""

from __future__ import annotations

from typing import Any

from textual.content import Content
from textual.widgets import Input, OptionList

from async_tests import in_loop
from hearth.app.tui.screens.search import SearchScreen
from hearth.app.tui.services import Services
from pilots import chat_of, opened, until, until_shown
from screens import text_of


def a_chat(services: Services, *texts: str, title: str = "", archived: bool = False) -> str:
    """A chat with these messages of the user; returns its id."""
    thread = services.chats.create(title=title).id
    parent = None
    for text in texts:
        parent = services.chats.add(thread, parent, "user", text).id
    if archived:
        services.chats.update(thread, archived=True)
    return thread


async def search_for(pilot: Any, words: str) -> SearchScreen:
    """Open the search and type `words`."""
    await pilot.press("ctrl+f")
    await until(pilot, lambda: isinstance(pilot.app.screen, SearchScreen))
    screen = pilot.app.screen
    assert isinstance(screen, SearchScreen)
    await until(pilot, lambda: isinstance(screen.focused, Input))
    await pilot.press(*(word if word != " " else "space" for word in words))
    return screen


@in_loop
async def test_down_goes_from_result_to_result_while_one_still_writes(services: Services) -> None:
    a_chat(services, "a needle here", title="First")
    a_chat(services, "and a needle there", title="Second")
    async with opened(services) as (app, pilot):
        screen = await search_for(pilot, "needle")
        await until_shown(pilot, "2 found")
        results = screen.query_one(OptionList)
        assert results.highlighted is None
        await pilot.press("down")
        assert results.highlighted == 0
        await pilot.press("down")
        assert results.highlighted == 1
        await pilot.press("down")
        assert results.highlighted == 1
        await pilot.press("up")
        assert results.highlighted == 0
        await pilot.press("space", *"there")
        await until_shown(pilot, "1 found")
        assert isinstance(app.focused, Input)


@in_loop
async def test_the_chosen_result_stays_chosen_while_one_still_writes(services: Services) -> None:
    a_chat(services, "a needle here", title="First")
    a_chat(services, "and a needle there", title="Second")
    async with opened(services) as (_, pilot):
        screen = await search_for(pilot, "need")
        await until_shown(pilot, "2 found")
        await pilot.press("down", "down")
        chosen = screen._hits[1]
        await pilot.press("l", "enter")  # Whether or not it was found by then.
        await until(pilot, lambda: chat_of(pilot).session is not None)
        session = chat_of(pilot).session
        assert session is not None and session.thread.id == chosen.thread_id


@in_loop
async def test_one_that_is_no_longer_found_is_not_chosen(services: Services) -> None:
    here = a_chat(services, "a needle here", title="First")
    there = a_chat(services, "and a needle there", title="Second")
    async with opened(services) as (_, pilot):
        screen = await search_for(pilot, "needle")
        await until_shown(pilot, "2 found")
        await pilot.press("down")
        gone = screen._hits[0].thread_id
        await pilot.press("space", *("there" if gone == here else "here"))
        await until_shown(pilot, "1 found")
        results = screen.query_one(OptionList)
        assert results.highlighted is None
        assert screen._hits[0].thread_id == (there if gone == here else here)


@in_loop
async def test_the_words_are_marked_where_they_stand(services: Services) -> None:
    a_chat(services, "before\n\x1b needle after", title="Title")
    async with opened(services) as (_, pilot):
        screen = await search_for(pilot, "needle")
        await until_shown(pilot, "1 found")
        prompt = screen.query_one(OptionList).get_option_at_index(0).prompt
        assert isinstance(prompt, Content)
        marked = [prompt.plain[s.start : s.end] for s in prompt.spans if "accent" in str(s.style)]
        assert marked == ["needle"]
        assert "\x1b" not in prompt.plain


@in_loop
async def test_enter_opens_the_place(services: Services) -> None:
    texts = [f"line {number}" for number in range(60)]
    texts[20] = "the needle"
    wanted = a_chat(services, *texts, title="Long")
    async with opened(services) as (_, pilot):
        await search_for(pilot, "needle")
        await pilot.press("enter")  # Before any result is shown.
        await until(
            pilot,
            lambda: (session := chat_of(pilot).session) is not None and session.thread.id == wanted,
        )
        await until_shown(pilot, "the needle")


@in_loop
async def test_archived_chats_are_found_and_said_to_be(services: Services) -> None:
    a_chat(services, "the needle", title="Old", archived=True)
    async with opened(services) as (app, pilot):
        await search_for(pilot, "needle")
        await until_shown(pilot, "1 found")
        assert "archived" in text_of(app)


@in_loop
async def test_nothing_found_is_said(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await search_for(pilot, "needle")
        await until_shown(pilot, "Nothing found.")
        await pilot.press("down", "enter")
        assert isinstance(app.screen, SearchScreen)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, SearchScreen))
