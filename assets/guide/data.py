"""Training windows for guide: drawing conversations, keeping held-out questions out, packing.

A shard is a pure function of (seed, stream, number), so a run is reproducible however many
processes draw shards. Nothing here imports torch: worker processes stay small.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hearth.assets.guide.tokenizer import PAD, from_json, render_ids

Turns = list[tuple[str, str]]
Source = Callable[[random.Random], Turns]

GRAM_WORDS = 8
_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of ``text`` in lower case, punctuation left out ("don't" gives don, t)."""
    return _WORD.findall(text.lower())


@dataclass
class HeldOut:
    """Held-out questions in the two forms that training text is compared with."""

    questions: frozenset[str] = frozenset()
    grams: frozenset[str] = frozenset()

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        """Reads questions.jsonl (one {"q": ...} a line); a missing file is an error, as training
        without it could not be measured afterwards.
        """
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [words_of(json.loads(line)["q"]) for line in lines if line.strip()]
        grams = {
            " ".join(row[i : i + GRAM_WORDS])
            for row in rows
            for i in range(len(row) - GRAM_WORDS + 1)
        }
        return cls(frozenset(" ".join(row) for row in rows), frozenset(grams))

    def verdict(self, turns: Turns) -> str:
        """Why ``turns`` must not be trained on: "question", "gram", or "" when they may be."""
        for role, text in turns:
            words = words_of(text)
            if role == "user" and " ".join(words) in self.questions:
                return "question"
            for i in range(len(words) - GRAM_WORDS + 1):
                if " ".join(words[i : i + GRAM_WORDS]) in self.grams:
                    return "gram"
        return ""


@dataclass(frozen=True)
class Stream:
    """What one kind of shard looks like; two streams with different names never share text.

    ``window``: tokens a window; ``windows``: windows a shard; ``join``: pack conversations as one
    many-turn session instead of as separate documents; ``user_share``: probability that a token
    of a user or system turn is a target too (the assistant's tokens always are).
    """

    name: str
    window: int
    windows: int
    join: bool
    user_share: float


@dataclass
class Shard:
    """Windows ready to train on, all [windows, window].

    ``ids``: uint16 tokens; ``labels``: int16 next token, -1 where no loss is taken;
    ``docs``: int16 number of the document that a token belongs to (attention stays inside it).
    """

    ids: NDArray[np.uint16]
    labels: NDArray[np.int16]
    docs: NDArray[np.int16]
    counts: dict[str, int] = field(default_factory=dict)


def load_source(spec: str) -> Source:
    """The generator named "module:function"; see corpus/mixture.py for the real one."""
    module, name = spec.split(":")
    source: Source = getattr(importlib.import_module(module), name)
    return source


def clean_conversations(
    source: Source, held_out: HeldOut, rng: random.Random, counts: dict[str, int]
) -> Iterator[Turns]:
    """Endless conversations of ``source`` that share nothing with ``held_out``.

    Adds to ``counts``: "drawn", and "question" or "gram" for each one dropped.
    """
    while True:
        turns = source(rng)
        counts["drawn"] = counts.get("drawn", 0) + 1
        reason = held_out.verdict(turns)
        if reason:
            counts[reason] = counts.get(reason, 0) + 1
        else:
            yield turns


def _document(
    tok: Tokenizer, turns: Turns, user_share: float, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Ids of one conversation and, for each, 1 where the token is a target and 0 elsewhere.

    Drawing user targets with probability ``user_share`` has the same expected gradient as
    weighing all of them by it, and leaves most of the output layer's work undone.
    """
    ids: list[int] = []
    target: list[int] = []
    for role, text in turns:
        part = render_ids(tok, [(role, text)])
        ids += part
        target.append(0)
        if role == "assistant":
            target += [1] * (len(part) - 1)
        else:
            target += [int(rng.random() < user_share) for _ in part[1:]]
    return ids, target


def _fit(tok: Tokenizer, turns: Turns, window: int) -> Turns:
    """``turns`` without as many last exchanges as do not fit into ``window`` tokens."""
    while len(turns) > 2 and len(render_ids(tok, turns)) > window:
        turns = turns[:-2]
    return turns


def _sessions(conversations: Iterator[Turns], tok: Tokenizer, window: int) -> Iterator[Turns]:
    """Conversations joined to sessions of about ``window`` tokens.

    Only those without a system message: one that asks for capitals, say, would have to hold for
    all that follows it.
    """
    session: Turns = []
    length = 0
    for turns in conversations:
        if turns[0][0] == "system":
            continue
        size = len(render_ids(tok, turns))
        if session and length + size > window:
            yield session
            session, length = [], 0
        session = session + turns
        length += size


def build_shard(
    stream: Stream, seed: int, number: int, source: Source, held_out: HeldOut, tok: Tokenizer
) -> Shard:
    """Draws and packs shard ``number`` of ``stream``; every argument equal, every byte equal.

    Windows are filled first-fit from a small pool of waiting conversations, so that no
    conversation is cut and about one token in fifty is padding.
    """
    rng = random.Random(f"{seed}/{stream.name}/{number}")
    counts: dict[str, int] = {}
    conversations = clean_conversations(source, held_out, rng, counts)
    if stream.join:
        conversations = _sessions(conversations, tok, stream.window)
    shape = (stream.windows, stream.window)
    ids = np.full(shape, PAD, np.uint16)
    labels = np.full(shape, -1, np.int16)
    docs = np.full(shape, -1, np.int16)
    waiting: list[tuple[list[int], list[int]]] = []
    for w in range(stream.windows):
        at = doc = 0
        while True:
            while len(waiting) < (1 if stream.join else 24):
                turns = _fit(tok, next(conversations), stream.window)
                waiting.append(_document(tok, turns, stream.user_share, rng))
            room = stream.window - at
            if at == 0:
                pick = 0
            else:
                fits = [i for i, d in enumerate(waiting) if len(d[0]) <= room]
                if not fits:
                    break
                # The oldest that fits while there is much room, the longest that fits at the end.
                pick = fits[0] if room > 200 else max(fits, key=lambda i: len(waiting[i][0]))
            tokens, target = waiting.pop(pick)
            tokens, target = tokens[:room], target[:room]
            end = at + len(tokens)
            ids[w, at:end] = tokens
            docs[w, at:end] = doc
            following = np.array(tokens[1:], np.int16)
            labels[w, at : end - 1] = np.where(np.array(target[1:], bool), following, -1)
            at, doc = end, doc + 1
    # Padding is its own document, so that every query has at least one key to look at.
    counts["padding"] = int((docs < 0).sum())
    return Shard(ids, labels, docs, counts)


@cache
def _tools(spec: str, questions: Path, tokenizer: str) -> tuple[Source, HeldOut, Tokenizer]:
    """What a worker process needs for every shard, made once a process."""
    return load_source(spec), HeldOut.load(questions), from_json(tokenizer)


def _work(
    stream: Stream, seed: int, number: int, spec: str, questions: Path, tokenizer: str
) -> Shard:
    return build_shard(stream, seed, number, *_tools(spec, questions, tokenizer))


def _end_with_parent() -> None:
    """Ends this worker process when the training process is gone, however it went."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


class Drawer:
    """Draws shards in worker processes and hands them out in order.

    Between calls the workers sleep, so that training has all cores: drawing takes turns with
    training instead of slowing every step. ``counts`` sums the counts of all shards so far.
    """

    def __init__(
        self, spec: str, questions: Path, tok: Tokenizer, seed: int, processes: int
    ) -> None:
        self.counts: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._work = partial(
            _work, seed=seed, spec=spec, questions=questions, tokenizer=tok.to_str()
        )
        # Spawned, not forked: a fork would inherit torch's thread pool in an unusable state.
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent)

    def draw(self, stream: Stream, shards: int) -> Shard:
        """The next ``shards`` shards of ``stream`` as one, windows one after the other."""
        first = self._next.get(stream.name, 0)
        self._next[stream.name] = first + shards
        jobs = [
            self._pool.submit(self._work, stream, number=number)
            for number in range(first, first + shards)
        ]
        parts = [job.result() for job in jobs]
        for part in parts:
            for key, n in part.counts.items():
                self.counts[key] = self.counts.get(key, 0) + n
        return Shard(
            np.concatenate([p.ids for p in parts]),
            np.concatenate([p.labels for p in parts]),
            np.concatenate([p.docs for p in parts]),
        )

    def windows(self, stream: Stream, count: int, shards: int = 16) -> Iterator[Shard]:
        """Endless batches of ``count`` windows, refilled ``shards`` shards at a time."""
        while True:
            big = self.draw(stream, shards)
            for at in range(0, len(big.ids) - count + 1, count):
                cut = slice(at, at + count)
                yield Shard(big.ids[cut], big.labels[cut], big.docs[cut])

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.shutdown()


def text_sample(source: Source, held_out: HeldOut, seed: int, characters: int) -> list[str]:
    """About ``characters`` characters of turns to learn the vocabulary from."""
    rng = random.Random(f"{seed}/tokenizer")
    texts: list[str] = []
    total = 0
    for turns in clean_conversations(source, held_out, rng, {}):
        for _, text in turns:
            texts.append(text)
            total += len(text)
        if total >= characters:
            break
    return texts
