"""JSON-schema requests to Hearth's endpoint and to llama-server: which answers end by themselves.

    python benchmarks/structured_output.py --server build/bin/llama-server --model MODEL.gguf
        [--max-tokens 1024] [--clients 4] [--threads 2] [--show] [--json RESULT.json]

Sends 50 requests at temperature 0, with schemas as pydantic writes them, to `hearth serve` and to
llama-server, which run the same model with the same context. Counts the answers that ended by
themselves, those that reached the token limit, and those that ended and do not follow their schema.
Without --server only Hearth is tested. The exit code is 1 if an answer of Hearth that ended does
not follow its schema, if more than two reached the limit, or if more of them did than of
llama-server's. docs/bench.md explains how to build llama-server.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date, datetime
from datetime import time as clock
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
from beside_llama_server import servers
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

MOST_CUT = 2


class Color(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(int, Enum):
    LOW = 1
    MIDDLE = 2
    HIGH = 3


class City(BaseModel):
    name: str
    country: str


class Capital(BaseModel):
    """The capital of a country."""

    city: str
    country: str
    population: int = Field(description="in thousands", ge=0)


class Person(BaseModel):
    name: str
    age: int
    email: str | None = None


class Book(BaseModel):
    title: str
    author: str
    year: Annotated[int, Field(ge=1400, le=2030)]
    genres: list[Literal["novel", "poetry", "history", "science"]] = []


class Address(BaseModel):
    street: str
    number: int
    city: City
    zip_code: str = Field(pattern=r"^\d{5}$")


class Employee(BaseModel):
    person: Person
    address: Address
    manager: Person | None = None
    skills: list[str] = Field(max_length=5)


class Company(BaseModel):
    name: str
    founded: date
    employees: list[Employee] = Field(min_length=1, max_length=2)


class Product(BaseModel):
    name: str = Field(min_length=1, max_length=40)
    price: float = Field(gt=0)
    tags: list[str] = Field(default_factory=list, max_length=4)
    color: Color
    in_stock: bool


class Priced(BaseModel):
    item: str
    price: Decimal


class Review(BaseModel):
    stars: Annotated[int, Field(ge=1, le=5)]
    mood: Literal["positive", "neutral", "negative"]
    summary: str
    keywords: list[str]


class Event(BaseModel):
    title: str
    starts: datetime
    ends: datetime | None = None
    at: clock | None = None
    attendees: list[Person] = Field(max_length=3)


class Ticket(BaseModel):
    ident: UUID
    level: Level
    title: str
    labels: dict[str, str] = {}


class Scores(BaseModel):
    by_subject: dict[str, int]


class Grades(BaseModel):
    grades: dict[Literal["math", "art", "music"], float]


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Comment(BaseModel):
    author: str
    text: str
    reply: Comment | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: str
    weight_kg: float | None = None


class Owner(BaseModel):
    name: str
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Shape(BaseModel):
    shape: Literal["circle", "square"]
    size: float | int | str


class Step(BaseModel):
    explanation: str
    output: str


class Solution(BaseModel):
    steps: list[Step]
    final_answer: str


class Point(BaseModel):
    x: float = Field(ge=-100, le=100)
    y: float = Field(ge=-100, le=100)


class Path2D(BaseModel):
    points: list[Point] = Field(min_length=2, max_length=5)
    closed: bool = False


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answer: str
    confidence: float = Field(ge=0, le=1)


class Settings(BaseModel):
    theme: Literal["dark", "light"] = "dark"
    font_size: int = 12
    volume: int = Field(default=50, multiple_of=5, ge=0, le=100)
    shortcuts: dict[str, str] = {}
    recent: tuple[str, int] | None = None


class Recipe(BaseModel):
    name: str
    ingredients: list[tuple[str, float]] = Field(max_length=6)
    minutes: int = Field(gt=0, lt=600)
    difficulty: Level


class Matrix(BaseModel):
    rows: list[list[int]] = Field(max_length=3)


class Weather(BaseModel):
    place: City
    celsius: float
    sky: Literal["clear", "cloudy", "rain", "snow"]
    wind: dict[Literal["speed", "gust"], float] | None = None


class Search(BaseModel):
    query: str
    filters: list[Color | Level] = []
    limit: int | None = Field(default=None, le=100)


class Empty(BaseModel):
    """Nothing to say."""


class Meta(BaseModel):
    source: str
    extra: dict[str, Any] = {}


class Article(BaseModel):
    headline: str
    authors: list[str]
    published: date | None
    meta: Meta | None = None


QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("What is the capital of France?", Capital),
    ("What is the capital of Japan? Answer in JSON.", Capital),
    ("Name a city in Italy.", City),
    ("Make up a person.", Person),
    ("Extract the person: Ada Lovelace, 36, ada@example.com.", Person),
    ("Which book did Herman Melville write about a whale?", Book),
    ("Recommend a poetry book.", Book),
    ("List three books by Jane Austen.", list[Book]),
    ("Where is the White House?", Address),
    ("Describe an employee of a bakery.", Employee),
    ("Describe a small company that builds boats.", Company),
    ("Describe a product: a green bicycle.", Product),
    ("Describe a product: a red kettle for 25 dollars.", Product),
    ("What does a loaf of bread cost?", Priced),
    ("Review: The food was cold and the waiter was rude.", Review),
    ("Review: A wonderful film, I cried twice.", Review),
    ("Plan a meeting with Bob and Alice on Friday.", Event),
    ("Plan a birthday party.", Event),
    ("Write a ticket: the printer on floor 2 is on fire.", Ticket),
    ("Scores: Anna has 3 in math and 5 in art.", Scores),
    ("Grades: 1.5 in math, 2 in art.", Grades),
    ("Draw the tree of a family with two children.", Tree),
    ("A tree of folders of a small Python project.", Tree),
    ("A comment on a video of a cat, with one reply.", Comment),
    ("Tom has a cat.", Owner),
    ("Mary has a poodle that weighs 8 kg.", Owner),
    ("A pet for a small flat.", Cat | Dog),
    ("A circle with a radius of three meters.", Shape),
    ("Solve 8x + 7 = -23.", Solution),
    ("How do I make tea?", Solution),
    ("Two points on a line through the origin.", Path2D),
    ("A triangle.", Path2D),
    ("Is the earth flat?", Closed),
    ("Why is the sky blue?", Closed),
    ("My settings: a light theme and large letters.", Settings),
    ("Default settings, please.", Settings),
    ("A recipe for pancakes.", Recipe),
    ("A recipe for tomato soup.", Recipe),
    ("The identity matrix of size 2.", Matrix),
    ("The weather in Oslo today.", Weather),
    ("The weather in Cairo: 35 degrees, clear.", Weather),
    ("Search for red shoes, at most ten.", Search),
    ("Say nothing.", Empty),
    ("An article on bees.", Article),
    ("An article on the history of the bicycle, by two authors.", Article),
    ("Count from one to five.", list[int]),
    ("Name the colors of the flag of France.", list[Color]),
    ("How many legs do a spider, a cat and a bird have?", dict[str, int]),
    ("Which level is hard?", Level),
    ("People in a room: Bob, 30, and Eve, 41.", dict[str, Person]),
)


@dataclass
class Answer:
    """A server's answer to one request."""

    question: str
    reason: str
    """stop, length, or why there is no answer."""
    tokens: int
    text: str
    is_valid: bool
    seconds: float


def ask(base: str, model: str, most: int, asked: tuple[str, Any]) -> Answer:
    question, kind = asked
    schema = TypeAdapter(kind).json_schema()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": most,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        },
    }
    request = urllib.request.Request(
        f"{base}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            made = json.load(response)
    except urllib.error.HTTPError as error:
        reason = f"{error.code} {error.read()[:300].decode(errors='replace')}"
        return Answer(question, reason, 0, "", False, time.monotonic() - began)
    choice = made["choices"][0]
    text = choice["message"]["content"] or ""
    seconds = time.monotonic() - began
    tokens = made["usage"]["completion_tokens"]
    return Answer(question, choice["finish_reason"], tokens, text, follows(text, schema), seconds)


def follows(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def first_model(base: str) -> str:
    with urllib.request.urlopen(f"{base}/models", timeout=60) as response:
        ident: str = json.load(response)["data"][0]["id"]
    return ident


def line(name: str, answers: list[Answer]) -> str:
    ended = [one for one in answers if one.reason == "stop"]
    cut = sum(one.reason == "length" for one in answers)
    tokens = sum(one.tokens for one in answers)
    return (
        f"{name:14} {len(answers):8} {len(ended):6} {cut:6} {len(answers) - len(ended) - cut:7}"
        f" {sum(not one.is_valid for one in ended):8} {tokens:8}"
        f" {sum(one.seconds for one in answers):8.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--threads", type=int, help="of each server; one per processor")
    parser.add_argument("--show", action="store_true", help="print each answer when it arrives")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores;"
        f" {args.model.name}; {len(QUESTIONS)} requests, max_tokens {args.max_tokens}"
    )
    found: dict[str, list[Answer]] = {}
    with servers(args.server, args.model.resolve(), args.threads) as running:
        for name, one in running.items():
            model = first_model(one.base)
            with ThreadPoolExecutor(args.clients) as clients:
                asked = partial(ask, one.base, model, args.max_tokens)
                found[name] = []
                for answer in clients.map(asked, QUESTIONS):
                    found[name].append(answer)
                    if args.show:
                        print(name, answer, flush=True)
    print(f"{'':14} requests   stop length refused  invalid   tokens  seconds")
    for name, answers in found.items():
        print(line(name, answers))
    if args.json:
        made = {name: [asdict(one) for one in answers] for name, answers in found.items()}
        args.json.write_text(json.dumps(made, indent=1))
    ours = found["hearth"]
    cut = sum(one.reason == "length" for one in ours)
    theirs = sum(one.reason == "length" for one in found.get("llama-server", []))
    is_good = all(one.is_valid for one in ours if one.reason == "stop")
    is_good &= all(one.reason in ("stop", "length") for one in ours)
    return 0 if is_good and cut <= MOST_CUT and (not args.server or cut <= theirs) else 1


if __name__ == "__main__":
    sys.exit(main())
