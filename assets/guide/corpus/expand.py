"""Patterns with `{a|b|}` alternations, questions as people type them, and topics read from TOML."""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from hearth.assets.guide.corpus import Conversation

T = TypeVar("T")


class Pattern:
    """A parsed pattern: literal strings and groups of alternatives, ready to be drawn from."""

    __slots__ = ("literal", "parts")

    def __init__(self, text: str) -> None:
        self.parts, end = _parse(text, 0)
        if end != len(text):
            raise ValueError(f"unbalanced '}}' at {end} in pattern {text!r}")
        self.literal = len(self.parts) == 1 and isinstance(self.parts[0], str)

    def sample(self, rng: random.Random) -> str:
        """One reading of the pattern, with the spaces that empty alternatives leave removed."""
        if self.literal:
            return str(self.parts[0])
        out: list[str] = []
        _walk(self.parts, rng, out)
        return _tidy("".join(out))


# A part is literal text or the list of a group's alternatives, each a list of parts again.
Part = str | list["list[Part]"]


def _parse(text: str, at: int, inside: bool = False) -> tuple[list[Part], int]:
    """Parts from `at` up to the end of the text, or of this alternative when inside a group."""
    parts: list[Part] = []
    start = at
    while at < len(text):
        char = text[at]
        if char in "|}" and inside:
            break
        if char == "}":
            return parts, at
        if char == "{":
            if at > start:
                parts.append(text[start:at])
            group, end = _parse_group(text, at)
            parts.append(group)
            at = start = end
            continue
        at += 1
    if at > start or not parts:
        parts.append(text[start:at])
    return parts, at


def _parse_group(text: str, at: int) -> tuple[Part, int]:
    """The group that opens at `at` and the place after it."""
    alternatives: list[list[Part]] = []
    end = at
    while True:
        parts, end = _parse(text, end + 1, inside=True)
        if end >= len(text):
            raise ValueError(f"unbalanced '{{' at {at} in pattern {text!r}")
        alternatives.append(parts)
        if text[end] == "}":
            break
    if len(alternatives) == 1:  # braces without a bar are text: JSON in an answer stays as it is
        return text[at : end + 1], end + 1
    return alternatives, end + 1


def _walk(parts: list[Part], rng: random.Random, out: list[str]) -> None:
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        else:
            _walk(part[int(rng.random() * len(part))], rng, out)


_SPACES = re.compile(r" {2,}")
_LOOSE = re.compile(r" +([,?!])")


def _tidy(text: str) -> str:
    if "  " in text:
        text = _SPACES.sub(" ", text)
    if " ," in text or " ?" in text or " !" in text:
        text = _LOOSE.sub(r"\1", text)
    return text.strip()


@lru_cache(maxsize=4096)
def _parsed(pattern: str) -> Pattern:
    return Pattern(pattern)


def expand(pattern: str, rng: random.Random) -> str:
    """Draw one reading of `pattern`; `{a|b|}` picks one alternative, groups may nest."""
    return _parsed(pattern).sample(rng)


def sentence(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WH = _set("what what's who who's whose where when which why how")
_ASKING = _WH | _set("can could do does did is are am was will would should may has have")
_ORDER = _set(
    "tell spell count add write give explain name say list show describe subtract multiply"
)
_BEFORE_WH = ("please tell me", "tell me", "can you tell me", "could you tell me",
              "i was wondering,", "i want to know,", "do you know", "any idea")  # fmt: skip
_BEFORE_ORDER = ("please", "can you", "could you", "can you please", "would you")
_BEFORE_ANY = ("hey,", "hi,", "hello,", "quick question:", "so,", "ok,", "hey guide,", "guide,",
               "hi there,", "one more thing:", "question:", "sorry,")  # fmt: skip
_SHORTER = (("what is ", "what's "), ("who is ", "who's "), ("where is ", "where's "),
            ("i am ", "i'm "), ("do not ", "don't "), ("does not ", "doesn't "),
            ("can not ", "can't "), ("cannot ", "can't "), ("it is ", "it's "),
            ("how is ", "how's "), ("that is ", "that's "))  # fmt: skip
# Words a typo would turn into a wrong command; all others that are plain letters may get one.
_KEPT = _set(
    "hearth guide pull list show quantize serve bench doctor chat stop import version plain help "
    "stats json system model models install uninstall upgrade pipe echo huggingface"
)


def roughen(text: str, rng: random.Random, *, about_hearth: bool = False) -> str:
    """Make a well-written question look typed: case, final mark, politeness, a rare typo.

    Backticks, digits, ALL-CAPS names and command words keep their spelling."""
    if not any(char.isalnum() for char in text):
        return text
    end = text[-1] if text[-1] in "?.!" else ""
    body = text[: -len(end)] if end else text
    first = body.split(" ", 1)[0].lower().rstrip(",")
    asking, order = first in _ASKING, first in _ORDER
    shell = first in ("hearth", "pip", "make") or body[0] in "`/-"
    if (asking or order) and not shell:
        body = _wrap(body, first, asking, rng, about_hearth)
    if rng.random() < 0.25:
        body = _contract(body)
    if rng.random() < 0.08:
        body = _mistype(body, rng)
    draw = rng.random()
    if draw < 0.5:
        body = body if shell else sentence(body)
    elif draw < 0.8:
        body = _lower_first(body)
    else:
        body = _lower_words(body)
    return body + _mark(end, asking, order, body, rng)


def _wrap(body: str, first: str, asking: bool, rng: random.Random, about_hearth: bool) -> str:
    """A polite opening in about a fifth of the questions, a closing word in a twelfth."""
    draw = rng.random()
    if draw < 0.2:
        # Not before "tell me" or "can you": those would say it twice.
        if draw < 0.1 and first in _WH:
            body = f"{rng.choice(_BEFORE_WH)} {_lower_first(body)}"
        elif draw < 0.1 and not asking:
            body = f"{rng.choice(_BEFORE_ORDER)} {_lower_first(body)}"
        else:
            body = f"{rng.choice(_BEFORE_ANY)} {_lower_first(body)}"
    if asking and " you" in body[3:]:  # "do you like me, thanks?" is said by nobody
        return body
    draw = rng.random()
    if draw < 0.03:
        return body + ", please" if draw < 0.015 else body + " please"
    if draw < 0.055:
        return body + ", thanks"
    if draw < 0.08 and about_hearth and asking:
        low = body.lower()
        if "hearth" not in low and "guide" not in low:
            return body + " in hearth"
    return body


def _lower_first(text: str) -> str:
    if text[1:2].islower() or text[1:2] in (" ", "'", ""):
        return text[0].lower() + text[1:]
    return text


def _lower_words(text: str) -> str:
    """Lower-case the words that are merely capitalised; names such as Q4_K_M or CPU stay."""
    words = text.split(" ")
    for index, word in enumerate(words):
        if word[:1].isupper() and (len(word) == 1 or word[1:].islower()):
            bare = word.rstrip(",.:;")
            if bare.replace("'", "").isalpha():
                words[index] = word.lower()
    return " ".join(words)


def _contract(text: str) -> str:
    low = text.lower()
    for long, short in _SHORTER:
        at = low.find(long)
        if at == 0 or (at > 0 and low[at - 1] == " "):
            kept = short if text[at].islower() else sentence(short)
            return text[:at] + kept + text[at + len(long) :]
    return text


def _mistype(text: str, rng: random.Random) -> str:
    """One slip of the fingers, in a word of plain small letters outside backticks."""
    if "`" in text:
        return text
    words = text.split(" ")
    free = [
        index
        for index, word in enumerate(words)
        if len(word) > 3
        and word.isalpha()
        and word[1:].islower()
        and word.lower() not in _KEPT
        and not (index and words[index - 1] == "hearth")
    ]
    if not free:
        return text
    index = free[int(rng.random() * len(free))]
    word = words[index]
    at = 1 + int(rng.random() * (len(word) - 2))
    kind = rng.random()
    if kind < 0.4:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif kind < 0.75:
        word = word[:at] + word[at + 1 :]
    else:
        word = word[:at] + word[at] + word[at:]
    words[index] = word
    return " ".join(words)


def _mark(end: str, asking: bool, order: bool, body: str, rng: random.Random) -> str:
    """The final mark, or none; a full stop never touches a name, number or path."""
    draw = rng.random()
    plain = body[-1:].isalpha()
    if end == "?" or (asking and not end):
        if draw < 0.58:
            return "?"
        if draw < 0.61:
            return "??"
        return "." if draw < 0.64 and plain else ""
    if draw < 0.6:
        return end
    if draw < 0.75 and plain:
        return "."
    return "?" if draw > 0.97 and order else ""


class Exchange:
    """A question in many wordings with its answer in a few; `@slot` marks are filled in."""

    def __init__(self, asks: Sequence[str], answers: Sequence[str], capital: bool = True) -> None:
        self.asks = [Pattern(ask) for ask in asks]
        self.answers = [Pattern(answer) for answer in answers]
        self.capital = capital

    def draw(self, rng: random.Random, **slots: str) -> tuple[str, str]:
        """One question as it is typed, and its answer."""
        ask, answer = self.written(rng, **slots)
        return roughen(ask, rng), answer

    def written(self, rng: random.Random, **slots: str) -> tuple[str, str]:
        """One question as it is written in its pattern, and its answer."""
        ask = fill(pick(self.asks, rng).sample(rng), slots)
        answer = fill(pick(self.answers, rng).sample(rng), slots)
        return ask, sentence(answer) if self.capital else answer


def fill(text: str, slots: dict[str, str]) -> str:
    """Replace each `@name` by its slot; no slot's name may begin with another's."""
    if "@" in text:
        for name, value in slots.items():
            text = text.replace("@" + name, value)
    return text


def pick(items: Sequence[T], rng: random.Random) -> T:
    """One of `items`; much faster than rng.choice."""
    return items[int(rng.random() * len(items))]


@dataclass(frozen=True)
class Topic:
    """One thing to know: patterns that ask for it and texts that answer."""

    id: str
    ask: tuple[str, ...]
    answer: tuple[str, ...]


@dataclass(frozen=True)
class Dialogue:
    """A conversation of several turns in which later questions lean on earlier ones."""

    id: str
    turns: tuple[tuple[str, str], ...]


def load_topics(folder: Path) -> tuple[list[Topic], list[Dialogue]]:
    """Topics and dialogues of every TOML file in `folder`, by name; none if it is not there."""
    topics: list[Topic] = []
    dialogues: list[Dialogue] = []
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        more, talks = load_file(path)
        for topic in more:
            if topic.id in seen:
                raise ValueError(f"{path.name}: topic {topic.id!r} is in {seen[topic.id]} already")
            seen[topic.id] = path.name
        topics += more
        dialogues += talks
    return topics, dialogues


def load_file(path: Path) -> tuple[list[Topic], list[Dialogue]]:
    """Topics and dialogues of one file; ValueError names the file and the entry at fault."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: not TOML: {error}") from error
    topics = []
    for number, entry in enumerate(data.get("topic", []), 1):
        name = entry.get("id")
        where = f"{path.name}: topic {name or f'number {number}'}"
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: needs an id")
        topics.append(Topic(name, _texts(entry, "ask", where), _texts(entry, "answer", where)))
    dialogues = []
    for number, entry in enumerate(data.get("dialogue", []), 1):
        name = str(entry.get("id", f"{path.stem}-{number}"))
        where = f"{path.name}: dialogue {name}"
        turns = entry.get("turns")
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"{where}: needs turns = [[ask, answer], ...]")
        pairs = []
        for turn in turns:
            if not (isinstance(turn, list) and len(turn) == 2):
                raise ValueError(f"{where}: a turn is [ask, answer], found {turn!r}")
            pairs.append((_text(turn[0], where), _text(turn[1], where)))
        dialogues.append(Dialogue(name, tuple(pairs)))
    return topics, dialogues


def _texts(entry: dict[str, object], key: str, where: str) -> tuple[str, ...]:
    values = entry.get(key)
    if not isinstance(values, list) or not values:
        raise ValueError(f"{where}: {key} must be a list of texts")
    return tuple(_text(value, where) for value in values)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected a text, found {value!r}")
    try:
        Pattern(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return value


class TopicSource:
    """Conversations out of topics: one to three unrelated questions, or a written dialogue."""

    def __init__(
        self,
        name: str,
        topics: Sequence[Topic],
        dialogues: Sequence[Dialogue] = (),
        *,
        about_hearth: bool = False,
    ) -> None:
        if not topics:
            raise ValueError(f"{name}: no topics")
        self.name = name
        self.about_hearth = about_hearth
        self.exchanges = [Exchange(topic.ask, topic.answer, capital=False) for topic in topics]
        # A topic with many wordings is drawn more often, but by the root: small ones are learnt.
        self.weights = list(accumulate(math.sqrt(len(topic.ask)) for topic in topics))
        self.dialogues = [
            [(Pattern(ask), Pattern(answer)) for ask, answer in dialogue.turns]
            for dialogue in dialogues
        ]
        count = len(self.dialogues)
        self.talk = min(0.25, count / (count + len(topics)))

    def sample(self, rng: random.Random) -> Conversation:
        """A dialogue, or one, two or three topics in a row."""
        if rng.random() < self.talk:
            return self._said(pick(self.dialogues, rng), rng)
        draw = rng.random()
        count = 1 if draw < 0.55 else 2 if draw < 0.85 else 3
        count = min(count, len(self.exchanges))
        pairs: list[Exchange] = []
        for chosen in rng.choices(self.exchanges, cum_weights=self.weights, k=count):
            if all(chosen is not earlier for earlier in pairs):
                pairs.append(chosen)
        return self._said([(pick(p.asks, rng), pick(p.answers, rng)) for p in pairs], rng)

    def _said(self, pairs: Sequence[tuple[Pattern, Pattern]], rng: random.Random) -> Conversation:
        turns: Conversation = []
        for ask, answer in pairs:
            text = roughen(ask.sample(rng), rng, about_hearth=self.about_hearth)
            turns += [("user", text), ("assistant", answer.sample(rng))]
        return turns
