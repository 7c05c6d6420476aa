"""What a front end holds to run one model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from hearth.backends.contract.events import Embeddings, Event, Prompt, Ranks, Scores
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.requests import Pooling, Request


class Backend(Protocol):
    """What a front end holds to run one model; `host.client` implements it over the host."""

    async def info(self) -> ModelInfo:
        """Load the model if need be and say what it is."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; closing the iterator cancels it."""
        ...

    async def tokenize(
        self, text: str, *, special: bool = False, add_special: bool = False
    ) -> list[int]:
        """Token ids of `text`; with `special`, special tokens written in it are recognised; with
        `add_special`, between those that the model wants at the beginning and end of a text.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens written out."""
        ...

    async def render(self, request: Request) -> Prompt:
        """What the model would get for `request`; nothing is generated."""
        ...

    async def restore(self, request: Request) -> None:
        """`request`, or one that goes on from it, is sent soon: bring what the disk has of its
        prompt back into the KV cache.
        """
        ...

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        """Log probability of each of `ids` (two or more) after those before it, and the `top`
        likeliest in its place. `session` as in `Request`.
        """
        ...

    async def embed(
        self,
        texts: Sequence[str | tuple[int, ...]],
        *,
        pooling: Pooling = "model",
        session: str = "",
        truncate: bool = False,
    ) -> Embeddings:
        """One vector a text (or its token ids); `pooling` "model" is what the model was trained
        with, else mean. With `truncate`, texts that exceed the context are cut at their end.
        """
        ...

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`, by a model that was trained to say so."""
        ...
