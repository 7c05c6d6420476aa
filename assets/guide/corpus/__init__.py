"""The text `guide` is trained on, as generators: every conversation is drawn from a seeded rng.
Topics written by hand lie in TOML (`hearth/`, `small_talk.toml`, `knowledge.toml`); families such
as sums, spelling and stories are one module each; `mixture.py` weighs and joins them."""

from __future__ import annotations

import random
from typing import Protocol

Turn = tuple[str, str]
"""(role, text); role is "system", "user" or "assistant"."""

Conversation = list[Turn]
"""Turns in the order in which they were said."""


class Source(Protocol):
    """Something that conversations can be drawn from."""

    name: str

    def sample(self, rng: random.Random) -> Conversation:
        """Draw one conversation; the same rng state gives the same text."""
        ...
