"""Asks guide the held-out questions and says how many it answers well.

``python -m hearth.assets.guide.evaluate [--model PATH] [--conversations]``. A question counts as
answered when every group of ``required`` has an alternative in the answer and nothing of
``forbidden`` is in it (case-insensitive substrings). Nothing here may be trained or tuned on.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MAX_TOKENS = 160

Messages = Sequence[tuple[str, str]]
Answerer = Callable[[Messages], str]
"""From the turns so far, (role, text), to the assistant's next turn."""


@dataclass(frozen=True)
class Question:
    """One held-out question; see the module's docstring for what the groups mean."""

    id: str
    topic: str
    q: str
    required: list[list[str]]
    forbidden: list[str]


@dataclass(frozen=True)
class Result:
    """An answer and what is wrong with it (nothing, when ``missing`` is empty)."""

    question: Question
    answer: str
    missing: list[str]


def load_questions(path: Path = HERE / "questions.jsonl") -> list[Question]:
    """The questions of a JSON Lines file, in its order."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [
        Question(str(r["id"]), r["topic"], r["q"], r["required"], r.get("forbidden", []))
        for r in rows
    ]


def load_conversations(path: Path = HERE / "conversations.jsonl") -> list[tuple[str, list[str]]]:
    """(id, user turns) of the free conversations."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [(str(r["id"]), r["turns"]) for r in rows]


def faults(question: Question, answer: str) -> list[str]:
    """What ``answer`` lacks ("one of a, b") or should not say ("not c")."""
    text = answer.lower()
    lacks = [
        "one of " + ", ".join(group)
        for group in question.required
        if not any(alternative.lower() in text for alternative in group)
    ]
    return lacks + [f"not {word}" for word in question.forbidden if word.lower() in text]


def ask_all(answerer: Answerer, questions: Sequence[Question]) -> list[Result]:
    """Asks every question in a conversation of its own."""
    results = []
    for question in questions:
        answer = answerer([("user", question.q)])
        results.append(Result(question, answer, faults(question, answer)))
    return results


def report(results: Sequence[Result]) -> str:
    """Failures one by one, then the share per topic and in all."""
    topics: dict[str, list[bool]] = defaultdict(list)
    lines: list[str] = []
    for r in results:
        topics[r.question.topic].append(not r.missing)
        if r.missing:
            lines.append(f"{r.question.id} [{r.question.topic}] {r.question.q}")
            lines.append(f"    answer:  {r.answer}")
            lines.append(f"    missing: {'; '.join(r.missing)}")
    lines.append("")
    for topic, good in sorted(topics.items()):
        lines.append(f"{topic:<14} {sum(good):>3} of {len(good):>3}  {sum(good) / len(good):6.1%}")
    right = sum(not r.missing for r in results)
    lines.append(
        f"{'all':<14} {right:>3} of {len(results):>3}  {right / max(1, len(results)):6.1%}"
    )
    return "\n".join(lines)


def hold_conversation(answerer: Answerer, turns: Sequence[str]) -> list[tuple[str, str]]:
    """Says ``turns`` one after the other; returns all messages, the answers included."""
    messages: list[tuple[str, str]] = []
    for turn in turns:
        messages.append(("user", turn))
        messages.append(("assistant", answerer(messages)))
    return messages


def torch_answerer(path: Path) -> Answerer:
    """Greedy answers of the GGUF file at ``path``, in torch."""
    from hearth.assets.guide.sample import Sampler

    sampler = Sampler(path)
    return lambda messages: sampler.answer(messages, MAX_TOKENS)


def main() -> None:
    """Prints the report on one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE / "guide.f16.gguf")
    parser.add_argument("--conversations", action="store_true", help="print the free ones too")
    args = parser.parse_args()
    answerer = torch_answerer(args.model)
    if args.conversations:
        for name, turns in load_conversations():
            print(f"--- {name}")
            for role, text in hold_conversation(answerer, turns):
                print(f"{role:>9}: {text}")
        print()
    print(report(ask_all(answerer, load_questions())))


if __name__ == "__main__":
    main()
