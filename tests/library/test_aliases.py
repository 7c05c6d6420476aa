"""Aliases: exact ones, and those with wildcards."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.app.library.local import Aliases, FoundModel, ModelNames

MODELS = (
    FoundModel("guide", Path("guide.gguf"), "bundled"),
    FoundModel("claude-mine", Path("claude-mine.gguf"), "library"),
    FoundModel("small", Path("s/small.gguf"), "huggingface", repo="Org/Small-GGUF"),
    FoundModel("mine", Path("mine.gguf"), "library"),
    FoundModel("mine:latest", Path("o/mine.gguf"), "ollama", also=("mine",)),
    FoundModel("large", Path("l/large.gguf"), "ollama", also=("large:latest",)),
)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("CLAUDE-mine", "claude-mine"),  # a model's own name
        ("claude-exact", "guide"),  # an exact alias
        ("Claude-Opus-4", "large"),  # the longer literal prefix
        ("claude-haiku", "small"),
        ("org/small-gguf", "small"),  # a further name, before the wildcards
        ("large:latest", "large"),
        ("mine", "mine"),
        ("mine:latest", "mine:latest"),  # its own name, before the one without the tag
        ("guide:latest", "guide"),
        ("claude-exact:latest", "guide"),
        ("org/small-gguf:latest", "small"),
        ("hf.co/Org/Small-GGUF", "small"),
        ("huggingface.co/Org/Small-GGUF:latest", "small"),
        ("x7:latest", "small"),
        ("gpt-4o", "guide"),  # the first pattern names no model
        ("x7", "small"),
        ("x77", None),
        ("other", None),
    ],
)
def test_names_come_before_exact_aliases_and_those_before_wildcards(
    asked: str, name: str | None
) -> None:
    aliases = {
        "claude-*": "Org/Small-GGUF",
        "claude-opus*": "large:latest",
        "claude-exact": "Guide",
        "claude-mine": "guide",
        "gpt-4*": "gone",
        "gpt-*": "guide",
        "org/*": "guide",
        "large:*": "guide",
        "x[0-9]": "small",
    }
    found = ModelNames(MODELS, Aliases(aliases)).find(asked)
    assert (found and found.name) == name


def test_one_pattern_can_take_every_name() -> None:
    names = ModelNames(MODELS, Aliases({"*": "guide"}))
    found = [names.find(asked) for asked in ("anything", "*", "", "small")]
    assert [model and model.name for model in found] == ["guide", "guide", "guide", "small"]
