"""The file of earlier inputs: bounded, shared, and read whatever it contains."""

from __future__ import annotations

from pathlib import Path

from hearth.app.tui.history import LONGEST, MOST, PromptHistory


def test_the_history_is_bounded_and_has_no_doubles_in_a_row(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    file.write_text("".join(f'"{number}"\n' * 2 for number in range(MOST + 5)))
    history = PromptHistory(file)
    assert len(history.entries) == MOST
    assert history.add("new") and not history.add("new") and not history.add(" \n")
    history.keep("new")
    history.keep("new")
    again = PromptHistory(file).entries
    assert len(again) == MOST and again[-2:] == (str(MOST + 4), "new")


def test_a_damaged_history_keeps_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    file.write_bytes(b'"good"\n\xff\xfe\n{"a": 1}\n"half')
    history = PromptHistory(file)
    assert history.entries == ("good",)
    history.add("more \ud800")
    history.keep("more \ud800")
    assert PromptHistory(file).entries == ("good", "more \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["prompt-history"]


def test_two_apps_share_a_history(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    first, second = PromptHistory(file), PromptHistory(file)
    for history, text in ((first, "a"), (second, "b"), (first, "c")):
        history.add(text)
        history.keep(text)
    assert PromptHistory(file).entries == ("a", "b", "c")


def test_a_huge_prompt_is_known_but_not_kept(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path / "prompt-history")
    assert not history.add("x" * (LONGEST + 1))
    assert history.older("") == "x" * (LONGEST + 1)
