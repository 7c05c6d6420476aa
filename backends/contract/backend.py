"""The interface through which a front end uses one model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from hearth.backends.contract.events import Embeddings, Event, Prompt, Ranks, Scores
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.requests import Pooling, Request


class Backend(Protocol):
    """The interface through which a front end uses one model; `host.client` implements it over the
    host.
    """

    async def info(self) -> ModelInfo:
        """Load the model if it is not loaded; returns its description."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; closing the iterator cancels it."""
        ...

    async def tokenize(
        self, text: str, *, special: bool = False, add_special: bool = False
    ) -> list[int]:
        """Token ids of `text`. With `special`, special tokens written in `text` are recognised;
        with `add_special`, the tokens that the model expects at the beginning and end of a text are
        added.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens written out."""
        ...

    async def render(self, request: Request) -> Prompt:
        """The prompt that the model would get for `request`; nothing is generated."""
        ...

    async def restore(self, request: Request) -> None:
        """Read the part of the prompt that is on disk back into the KV cache, because `request`, or
        one that continues it, will be sent soon.
        """
        ...

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        """Log probability of each of `ids` (two or more) given the tokens before it, and the `top`
        likeliest tokens at its position. `session` as in `Request`.
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
        """One vector for each text (or its token ids). `pooling` "model" is the pooling that the
        model was trained with, or mean if the model names none. With `truncate`, texts that exceed
        the context are cut at their end.
        """
        ...

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`; needs a model trained for ranking."""
        ...
