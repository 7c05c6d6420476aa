"""Choosing a file of a repository."""

from __future__ import annotations

from pathlib import Path

from async_tests import in_loop
from dialog_app import OPEN, asking
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.fit import Room
from hearth.app.library.hub import Repository, RepositoryFile
from hearth.app.library.menu import Menu, make_menu
from hearth.app.settings import load_settings
from hearth.app.tui.screens.pick_file import PickFile
from pilots import until
from screens import text_of

QUANTS = {"Q2_K": 3, "Q4_K_M": 5, "Q8_0": 8, "F16": 16}
GIB = 1 << 30


def a_menu(
    folder: Path, *, free: int = 12 * GIB, gated: bool = False, disk: int = 500 * GIB
) -> Menu:
    """Files of 3 to 16 GiB, a pickle, and that much free memory."""
    files = [
        RepositoryFile(f"model-{name}.gguf", size * GIB, f"{size:064x}", f"{size:040x}")
        for name, size in QUANTS.items()
    ]
    files.append(RepositoryFile("weights.bin", GIB, "e" * 64, "e" * 40))
    repository = Repository(
        "organisation/name-GGUF", "main", "a" * 40, gated, "\x1b[31mapache-2.0", tuple(files),
        parameters=8_000_000_000, context=32_768,
    )  # fmt: skip
    bandwidth = Bandwidth(20e9, 2, "a processor", "2026-01-01")
    room = Room(free, 16 * GIB, disk, bandwidth=bandwidth)
    settings = load_settings(folder / "settings.toml", {})
    return make_menu(repository, settings, room, folder / "hub", None)


@in_loop
async def test_groups_sizes_fit_and_the_recommended_one(tmp_path: Path) -> None:
    async with asking(PickFile(a_menu(tmp_path), "https://hub"), 120, 30) as (app, pilot):
        await until(pilot, lambda: "Needs" in text_of(app))
        await until(pilot, lambda: "2026-01-01" in text_of(app))
        lines = text_of(app).splitlines()
        row = {name: next(line for line in lines if f" {name} " in line) for name in QUANTS}
        order = [next(i for i, line in enumerate(lines) if word in line) for word in (
            "Small", " Q2_K ", "Balanced", " Q4_K_M ", "Large", " Q8_0 ", " F16 ")]  # fmt: skip
        assert order == sorted(order)
        assert "5.4 GB" in row["Q4_K_M"] and "Recommended" in row["Q4_K_M"]
        assert "fits" in row["Q2_K"] and "cannot" in row["F16"]
        assert "up to 3.7" in row["Q4_K_M"]
        shown = text_of(app)
        assert "\x1b" not in shown and "apache-2.0" in shown and "context 32,768" in shown
        assert "weights.bin is left out" in shown
        await pilot.press("enter")
        assert app.answer.name == "Q4_K_M"


@in_loop
async def test_another_one_by_arrows_and_none_by_escape(tmp_path: Path) -> None:
    for keys, name in ((("down", "enter"), "Q8_0"), (("up", "p"), "Q2_K"), (("escape",), None)):
        async with asking(PickFile(a_menu(tmp_path), "https://hub"), 80, 30) as (app, pilot):
            await until(pilot, lambda app=app: "Q4_K_M" in text_of(app))
            await pilot.pause()
            await pilot.press(*keys)
            await until(pilot, lambda app=app: app.answer is not OPEN)
            assert (app.answer.name if app.answer is not None else None) == name


@in_loop
async def test_gated_and_a_full_disk_are_said(tmp_path: Path) -> None:
    menu = a_menu(tmp_path, gated=True, disk=4 * GIB)
    picker = PickFile(menu, "https://hub", wanted="q8_0")
    async with asking(picker, 100, 34) as (app, pilot):
        await until(pilot, lambda: "does not fit on the disk" in text_of(app))
        shown = text_of(app)
        assert "Gated: accept its terms at https://hub/organisation/" in shown
        assert "HF_TOKEN" in shown and "no disk" in shown
