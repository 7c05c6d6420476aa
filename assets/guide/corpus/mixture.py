"""The whole corpus as one generator: weighted sources, some conversations joined, system text."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from hearth.assets.guide.corpus import Conversation, Source
from hearth.assets.guide.corpus.expand import TopicSource, load_topics
from hearth.assets.guide.corpus.knowledge import Knowledge
from hearth.assets.guide.corpus.small_talk import SmallTalk
from hearth.assets.guide.corpus.spelling import Spelling
from hearth.assets.guide.corpus.stories import Stories
from hearth.assets.guide.corpus.sums import Sums
from hearth.assets.guide.corpus.system import with_system

JOINED = 0.12
"""Share of conversations that go on with another source: people change the subject."""


def sources() -> list[tuple[float, Source]]:
    """Every source with its share; the topics on Hearth are left out while there are none."""
    pairs: list[tuple[float, Source]] = [
        (0.14, SmallTalk()),
        (0.13, Knowledge()),
        (0.10, Sums()),
        (0.06, Spelling()),
        (0.07, Stories()),
    ]
    topics, dialogues = load_topics(Path(__file__).parent / "hearth")
    if topics:
        pairs.insert(0, (0.50, TopicSource("hearth", topics, dialogues, about_hearth=True)))
    return pairs


class Mixture:
    """Draws conversations from all sources by their shares."""

    def __init__(self) -> None:
        pairs = sources()
        self.sources = [source for _, source in pairs]
        self.weights = list(accumulate(weight for weight, _ in pairs))

    def source(self, rng: random.Random) -> Source:
        """One source, by its share."""
        return rng.choices(self.sources, cum_weights=self.weights)[0]

    def conversation(self, rng: random.Random) -> Conversation:
        """One conversation with its system text, if it has one."""
        turns = self.source(rng).sample(rng)
        if rng.random() < JOINED:
            turns = turns + self.source(rng).sample(rng)
        return with_system(turns, rng)


@lru_cache(maxsize=1)
def mixture() -> Mixture:
    """The mixture, its patterns parsed at the first call."""
    return Mixture()


def conversation(rng: random.Random) -> Conversation:
    """Draw one conversation; the same rng state gives the same conversation."""
    return mixture().conversation(rng)
