"""Presets, with the chat's own commands."""

from __future__ import annotations

from async_tests import in_loop
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.services import Services
from pilots import ask, opened, say, until, until_shown
from scripted import ScriptedHost


@in_loop
async def test_a_chat_is_kept_as_a_preset_and_another_begins_with_it(
    services: Services, host: ScriptedHost
) -> None:
    async with opened(services) as (app, pilot):
        await say(pilot, "/system Be brief.")
        await say(pilot, "/set temperature 0")
        await pilot.pause()
        await say(pilot, "/save-preset terse")
        await until(pilot, lambda: [one.name for one in app.presets.all()] == ["terse"])
        await pilot.press("ctrl+n")
        await say(pilot, "/system Be long.")
        await pilot.pause()
        await say(pilot, "/preset terse")
        await pilot.pause()
        await ask(pilot, "x")
        request = host.models["guide"].requests[-1]
        assert request.messages is not None and request.messages[0].content == "Be brief."
        assert request.sampling.temperature == 0
        await say(pilot, "/preset no-such")
        await until_shown(pilot, "no-such")


@in_loop
async def test_a_preset_is_replaced_only_after_asking(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await say(pilot, "/system Be brief.")
        await until_shown(pilot, "System prompt: Be brief.")
        await say(pilot, "/save-preset terse")
        await until_shown(pilot, "Saved as the preset terse.")
        await say(pilot, "/system Be terse.")
        await until_shown(pilot, "System prompt: Be terse.")
        for key, kept in (("n", "Be brief."), ("y", "Be terse.")):
            await say(pilot, "/save-preset Terse")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press(key)
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await until(
                pilot, lambda kept=kept: [one.system for one in app.presets.all()] == [kept]
            )
