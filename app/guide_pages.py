"""Finds the documentation page that answers a question put to `guide`. Deterministic: the words of
the question are looked up in the questions that guide was trained on.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import hearth.app

_WORD: Final = re.compile(r"[a-z0-9][a-z0-9_.+-]*[a-z0-9]|[a-z0-9]")
_ENOUGH: Final = 0.45
"""A page is named if its best topic explains at least this share of the question, by word weight.
"""

_UNKNOWN: Final = 3.0
"""Weight of a word that occurs in no topic."""


@lru_cache(maxsize=256)
def page_for(question: str) -> str:
    """The page for `question`, such as "docs/library.md"; empty if no page fits. The first call
    reads some 300 kB, so do not make it in an event loop.
    """
    topics, weights = _topics()
    asked = _words(question)
    total = sum(weights.get(word, _UNKNOWN) for word in asked)
    if not total:
        return ""

    def score(topic: tuple[str, Mapping[str, float]]) -> float:
        return sum(weights[word] * topic[1][word] for word in asked if word in topic[1])

    best = max(topics, key=score)
    return best[0] if score(best) / total >= _ENOUGH else ""


def is_loaded() -> bool:
    """Whether `page_for` answers without reading files."""
    return _topics.cache_info().currsize > 0


def page_location(page: str) -> str:
    """Where `page` can be read: its path if it is on this machine, else its name."""
    path = Path(hearth.app.__path__[0]).resolve().parent / page
    return str(path) if path.is_file() else page


@cache
def _topics() -> tuple[list[tuple[str, Mapping[str, float]]], Mapping[str, float]]:
    """Each topic's page with how typical its words are of it, and the weights of all words."""
    from importlib.resources import files

    guide = Path(str(files("hearth.assets"))) / "guide"
    with (guide / "pages.toml").open("rb") as file:
        pages = {topic: page for page, text in tomllib.load(file).items() for topic in text.split()}
    counted: list[tuple[str, int, Counter[str]]] = []
    for part in sorted(guide.glob("corpus/**/*.toml")):
        for topic in tomllib.loads(part.read_text(encoding="utf-8")).get("topic", ()):
            asked = Counter(word for ask in topic["ask"] for word in _words(ask))
            counted.append((pages.get(topic["id"], ""), len(topic["ask"]), asked))
    spread = Counter(word for *_, asked in counted for word in asked)
    weights = {word: math.log(1 + len(counted) / times) for word, times in spread.items()}
    topics: list[tuple[str, Mapping[str, float]]] = [
        (page, {word: min(1.0, (times / asks) ** 0.5 + 0.3) for word, times in asked.items()})
        for page, asks, asked in counted
    ]
    return topics, weights


def _words(text: str) -> set[str]:
    """The words of `text` in lower case, without plural endings."""
    return {_stem(word) for word in _WORD.findall(text.lower())}


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
