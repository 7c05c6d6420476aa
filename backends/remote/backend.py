"""`RemoteBackend`: a model that another machine serves, held like one that runs here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

from hearth.backends.contract.events import (
    Embeddings,
    Event,
    Failed,
    Finished,
    Prompt,
    Ranks,
    Scores,
)
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Pooling, Request
from hearth.backends.engine.validate import validate
from hearth.backends.errors import HearthError, ModelNotFound, UnsupportedParameter, to_info
from hearth.backends.remote import texts
from hearth.backends.remote.body import notices, write_body
from hearth.backends.remote.chunks import ChunkReader, finite
from hearth.backends.remote.connection import Connection
from hearth.backends.remote.errors import (
    RemoteError,
    RemoteInterrupted,
    RemoteMalformed,
    RemoteModelMissing,
)
from hearth.backends.remote.models import ModelFinder, describe, list_models
from hearth.backends.remote.refusals import error_in, model_missing, reported
from hearth.backends.remote.server import RemoteServer
from hearth.backends.remote.sse import EventReader, ServerEvent, TooLong

_REST_S: Final = 0.1
"""How long the end of a body is waited for after its last event, so that the connection can be
used again.
"""
_DONE: Final = "[DONE]"


class RemoteBackend:
    """`contract.Backend` over HTTP. What the other end cannot be told is refused by name; tokens
    have no ids, as such servers do not send them.

    Args:
        connection: to the server.
        finder: tells which of its models it is.
        spec: how front ends call the model.
    """

    def __init__(self, connection: Connection, finder: ModelFinder, spec: ModelSpec) -> None:
        self._connection = connection
        self._server = connection.server
        self._finder = finder
        self.spec = spec

    async def info(self) -> ModelInfo:
        """Ask the other end what the model is. Raises HearthError."""
        begun_s = time.perf_counter()
        model = await self._finder.find(anew=True)
        took_s = time.perf_counter() - begun_s
        return describe(self._server, model, self.spec.settings, took_s)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; closing the iterator closes its connection at once."""
        try:
            async with contextlib.aclosing(self._events(request)) as events:
                async for event in events:
                    yield event
        except RemoteInterrupted:
            yield Finished("cancelled")
        except HearthError as error:
            if isinstance(error, RemoteError):
                self._finder.forget()
            yield Failed(to_info(error))

    async def tokenize(
        self, text: str, *, special: bool = False, add_special: bool = False
    ) -> list[int]:
        """Token ids of `text`. vLLM and SGLang recognise special tokens in it in any case.

        Raises:
            UnsupportedParameter: such a server does not tell.
        """
        return await texts.tokenize(
            self._connection, await self._finder.find(), text, special=special, begin=add_special
        )

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Raises as `tokenize` does."""
        return await texts.detokenize(self._connection, await self._finder.find(), ids)

    async def render(self, request: Request) -> Prompt:
        """What the model would get for `request`. Raises as `tokenize` does."""
        validate(request, None)
        return await texts.render(self._connection, await self._finder.find(), request)

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        """Log probability of each of `ids` after those before it, and the `top` likeliest.

        Raises:
            UnsupportedParameter: such a server gives none for a prompt.
        """
        return await texts.score(self._connection, await self._finder.find(), ids, top)

    async def embed(
        self,
        texts: Sequence[str | tuple[int, ...]],
        *,
        pooling: Pooling = "model",
        session: str = "",
        truncate: bool = False,
    ) -> Embeddings:
        """One vector of length 1 for each text; whether long ones are cut is the server's choice.
        Raises `UnsupportedParameter` for another pooling
        than the model's own.
        """
        if pooling != "model":
            raise UnsupportedParameter(
                "pooling",
                f"{self._server.name} is a remote model: how it pools is its server's choice.",
                "Leave pooling out.",
                remote=self._server.name,
            )
        model = await self._finder.find()
        inputs = [text if isinstance(text, str) else list(text) for text in texts]
        body = {"model": model.name, "input": inputs, "encoding_format": "float"}
        answer = await self._connection.post(f"{self._server.url}/embeddings", body)
        try:
            entries = sorted(answer["data"], key=lambda entry: entry["index"])
            vectors = tuple(_unit(entry["embedding"]) for entry in entries)
            if len(vectors) != len(inputs):
                raise ValueError(f"{len(vectors)} vectors for {len(inputs)} texts")
            return Embeddings(vectors, int(finite(answer["usage"]["prompt_tokens"])))
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed("embeddings", error) from error

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`."""
        model = await self._finder.find()
        body = {"model": model.name, "query": query, "documents": list(texts)}
        answer = await self._connection.post(f"{self._server.url}/rerank", body)
        try:
            found = {e["index"]: finite(e["relevance_score"]) for e in answer["results"]}
            usage = answer.get("usage") or {}
            tokens = usage.get("prompt_tokens", usage.get("total_tokens", 0))
            return Ranks(tuple(found[index] for index in range(len(texts))), int(finite(tokens)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._malformed("rerank", error) from error

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        validate(request, None)
        model = await self._finder.find()
        body = write_body(request, model.dialect, self._server.name, model.name)
        reader = ChunkReader(self._server, request, notices(request, model.dialect))
        path = "chat/completions" if request.messages is not None else "completions"
        try:
            async with self._connection.stream(f"{self._server.url}/{path}", body) as pieces:
                async with contextlib.aclosing(self._read(pieces)) as arrivals:
                    async for arrival in arrivals:
                        for event in self._meaning(reader, arrival):
                            yield event
                yield reader.end()
        except RemoteModelMissing as error:
            raise await self._which_models(model.name, error) from error

    async def _read(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[ServerEvent, None]:
        """The events of a body up to [DONE]."""
        reader = EventReader()
        try:
            async for piece in pieces:
                for event in reader.feed(piece):
                    yield event
                    if event.data == _DONE:
                        await self._read_rest(pieces)
                        return
            for event in reader.end():
                yield event
        except TooLong as error:
            raise RemoteMalformed(
                f"{self._server.name} sends an event without an end.",
                "Look into the log of that server.",
                remote=self._server.name,
            ) from error

    async def _read_rest(self, pieces: AsyncIterator[bytes]) -> None:
        with contextlib.suppress(TimeoutError, HearthError):
            async with asyncio.timeout(_REST_S):
                async for _ in pieces:
                    pass

    def _meaning(self, reader: ChunkReader, arrival: ServerEvent) -> Iterator[Event]:
        if arrival.name == ":":
            yield from reader.comment(arrival.data)
        elif arrival.data == _DONE:
            reader.done()
        else:
            try:
                chunk = json.loads(arrival.data)
            except (ValueError, RecursionError) as error:
                raise self._malformed("stream", error) from error
            said = chunk if arrival.name == "error" else error_in(chunk)
            if said is not None:
                raise reported(self._server, error_in(chunk) or said)
            if not isinstance(chunk, dict):
                raise self._malformed("stream", TypeError("a chunk is no object"))
            yield from reader.chunk(chunk)

    async def _which_models(self, name: str, error: RemoteModelMissing) -> HearthError:
        """A better error for a model that is not there: with the names of those that are."""
        if "names" in error.data:
            return error
        entries = await list_models(self._connection)
        names = [entry["id"] for entry in entries]
        return error if name in names else model_missing(self._server, name, names)

    def _malformed(self, what: str, error: Exception) -> RemoteMalformed:
        return RemoteMalformed(
            f"The {what} of {self._server.name} has another form than OpenAI's ({error}).",
            "Look into the log of that server.",
            remote=self._server.name,
        )


class RemoteBackends:
    """The remote models of one front end, each with a connection of its own, in one event loop.

    Args:
        servers: what the settings declare, by lower-case name.
    """

    def __init__(self, servers: Mapping[str, RemoteServer]) -> None:
        self._servers = servers
        self._open: dict[str, tuple[Connection, ModelFinder]] = {}

    def backend(self, spec: ModelSpec) -> RemoteBackend:
        """The model of `spec`. Raises `ModelNotFound` if it is not declared."""
        name = spec.name.lower()
        if name not in self._servers:
            raise ModelNotFound(
                f'There is no remote model "{spec.name}".', "[remotes] in settings.toml has them."
            )
        if name not in self._open:
            connection = Connection(self._servers[name])
            self._open[name] = connection, ModelFinder(connection)
        return RemoteBackend(*self._open[name], spec)

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            _, (connection, _) = self._open.popitem()
            await connection.close()


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    """`vector` at length 1. Raises ValueError if it has none, TypeError if it is no numbers."""
    length = math.hypot(*map(finite, vector))
    if not length or not math.isfinite(length):
        raise ValueError("a vector without a length")
    return tuple(value / length for value in vector)
