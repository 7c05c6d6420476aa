"""Requirements for everything that a Textual app draws, whatever foreign text it contains."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import OptionList, Select

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.app.tui.widgets.transcript import Transcript
from payloads import MARKDOWN_PAYLOADS, PAYLOADS

_SCROLLBAR = ("grab", "scroll_up", "scroll_down", "release")
MARKUP = tuple(text for text in PAYLOADS if "[" in text and text.isascii() and text.isprintable())
"""Payloads that only Textual would interpret."""
ALL = (*MARKUP, *(text for text in (*PAYLOADS, *MARKDOWN_PAYLOADS) if text not in MARKUP))
ONE_LINE = tuple(text for text in PAYLOADS if "\n" not in text)
LARGE = (140, 60)
"""A screen size at which `MARKUP` fits on the first page, one line each."""


def check(app: App[Any], *literal: str) -> None:
    """Require that nothing on the screen controls the terminal, hides anything or acts when
    clicked.

    Args:
        literal: texts that are on the screen unchanged, except for white space.
    """
    strips = app.screen._compositor.render_strips()
    found = list(faults(strips))
    assert not found, f"{len(found)} faults, such as {found[:3]}"
    shown = _without_space("".join(strip.text for strip in strips)) if literal else ""
    missing = [text for text in literal if _without_space(safe_text(text)) not in shown]
    assert not missing, f"{len(missing)} of {len(literal)} are not shown, such as {missing[:3]}"


def faults(strips: Iterable[Strip]) -> Iterator[str]:
    """The faults in rows of a screen, as messages."""
    for strip in strips:
        for text, style, control in strip:
            if control:
                yield f"control codes {control!r}"
            if not is_harmless(text):
                yield f"unsafe text {text!r}"
            if style is None:
                continue
            if style.link:
                yield f"link {style.link!r} of {text!r}"
            actions = [
                (name, what)
                for name, what in style.meta.items()
                if name.startswith("@") and what not in _SCROLLBAR
            ]
            if actions:
                yield f"{actions} of {text!r}"


@functools.lru_cache(10_000)
def is_harmless(text: str) -> bool:
    """An independent check in addition to `safe_text`: by Unicode's categories, whether a screen
    may show `text`.

    Joiners and variation selectors are judged by `safe_text` alone, because they may be part of a
    script.
    """
    return safe_text(text) == text and not any(
        unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        for char in text
        if char not in "\u200c\u200d" and not "\u0600" <= char <= "\u08ff"
    )


async def pages(pilot: Pilot[Any], widget: Widget) -> None:
    """Check the screen on every page of a scrolling widget."""
    top = 0
    while True:
        widget.scroll_to(y=top, animate=False, immediate=True)
        await pilot.pause()
        if widget.scroll_y < min(top, widget.max_scroll_y):
            continue  # It was filled again meanwhile.
        check(pilot.app)
        if top >= widget.max_scroll_y:
            return
        top += widget.scrollable_content_region.height


async def messages(pilot: Pilot[Any], transcript: Transcript) -> None:
    """Check the screen on every page of a transcript, which mounts and drops messages as it
    scrolls.
    """
    transcript.scroll_home(animate=False, immediate=True)
    while True:
        await pilot.pause()
        check(pilot.app)
        if transcript.scroll_y >= transcript.max_scroll_y:
            return
        transcript.scroll_page_down(animate=False)
        await pilot.pause()


async def every_option(pilot: Pilot[Any]) -> None:
    """Open every drop-down list, and look at each of its entries as the selected one."""
    for select in pilot.app.screen.query(Select):
        select.expanded = True
        await pilot.pause()
        await pages(pilot, select.query_one(OptionList))
        select.expanded = False
        for _, value in list(select._options)[::25]:
            select.value = value
            await pilot.pause()
            check(pilot.app)


async def every_row(pilot: Pilot[Any], rows: ColumnList) -> None:
    """Look at a list on every page, and with some of its lines selected."""
    await pages(pilot, rows.list)
    for at in range(0, rows.list.option_count, 25):
        rows.list.highlighted = at
        await pilot.pause()
        check(pilot.app)


def chunks(texts: Sequence[str], size: int) -> Iterator[str]:
    """`texts` as paragraphs, `size` of them in each text."""
    for start in range(0, len(texts), size):
        yield "\n\n".join(texts[start : start + size])


def _without_space(text: str) -> str:
    return "".join(text.split())
