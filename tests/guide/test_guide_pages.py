"""Which page is named for the 200 held-out questions of guide; the right ones were chosen by
reading the pages, before the questions were tried.
"""

from __future__ import annotations

import json
from pathlib import Path

from hearth.app.guide_pages import page_for, page_location
from source_tree import ROOT

LIBRARY, QUANTIZE, BENCH, INSTALL, SETTINGS, TERMINAL, SERVE, CONNECT, API, FAQ, ARCHITECTURE = (
    f"docs/{name}.md"
    for name in (
        *("library", "quantize", "bench", "install", "settings", "terminal", "serve"),
        *("connect", "api", "faq", "architecture"),
    )
)
CARD = "assets/guide/CARD.md"
BY_TOPIC = {
    "download": (LIBRARY,),
    "resume": (LIBRARY,),
    "quantize": (QUANTIZE,),
    "which-quant": (QUANTIZE,),
    "memory": (LIBRARY,),
    "library": (LIBRARY,),
    "run": (TERMINAL,),
    "endpoint": (SERVE,),
    "settings": (FAQ, SETTINGS),
    "privacy": (FAQ,),
    "words": (FAQ,),
    "platforms": (INSTALL,),
    "identity": (CARD,),
}
BY_QUESTION = {
    "quantize-04": (QUANTIZE, FAQ),
    "library-07": (SERVE,),
    "library-08": (SERVE,),
    **dict.fromkeys(("run-02", "run-03", "run-08", "run-09", "run-10"), (FAQ,)),
    "endpoint-04": (CONNECT,),
    "endpoint-10": (API,),
    "endpoint-11": (API,),
    "endpoint-12": (API,),
    "settings-06": (TERMINAL, FAQ),
    "slow-01": (FAQ,),
    "slow-02": (LIBRARY,),
    "slow-03": (BENCH,),
    "slow-04": (BENCH,),
    "slow-05": (FAQ,),
    "slow-06": (INSTALL,),
    "context-01": (SETTINGS,),
    "context-02": (TERMINAL, SERVE, API),
    "context-03": (SETTINGS,),
    "context-04": (CARD,),
    "words-13": (FAQ, QUANTIZE),
    "words-19": (FAQ, ARCHITECTURE),
    "platforms-03": (FAQ,),
    "platforms-04": (FAQ,),
    "platforms-08": (FAQ, LIBRARY),
    # What guide is and cannot do is on its card; no page is right as well.
    **{f"beyond-{number:02}": (CARD, "") for number in range(1, 26)},
    "smalltalk-19": (CARD, ""),
    "smalltalk-20": (CARD, ""),
}
QUESTIONS = [
    json.loads(line)
    for line in (ROOT / "assets/guide/questions.jsonl").read_text(encoding="utf-8").splitlines()
]


def pages_of(question: dict[str, str]) -> tuple[str, ...]:
    return BY_QUESTION.get(question["id"]) or BY_TOPIC.get(question["topic"], ("",))


def right(question: dict[str, str]) -> bool:
    return page_for(question["q"]) in pages_of(question)


def test_the_page_of_held_out_questions_is_right() -> None:
    about = [q for q in QUESTIONS if "" not in pages_of(q)]
    others = [q for q in QUESTIONS if q not in about]
    # 111 of 115, and 80 of 85: the threshold was chosen with these questions.
    assert sum(map(right, about)) >= 0.95 * len(about)
    assert sum(map(right, others)) >= 0.9 * len(others)


def test_every_named_page_can_be_read() -> None:
    for page in {page for pages in (*BY_TOPIC.values(), *BY_QUESTION.values()) for page in pages}:
        if page:
            assert Path(page_location(page)).read_text(encoding="utf-8")
    assert page_location("docs/none.md") == "docs/none.md"
