"""`RemoteBackend`: a model that another machine serves, used like a local one."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hearth.backends.contract.checks import typed
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
from hearth.backends.errors import HearthError, ModelNotFound, to_info
from hearth.backends.remote.body import notices, write_body
from hearth.backends.remote.chunks import ChunkReader, finite, text_logprobs
from hearth.backends.remote.connection import Connection
from hearth.backends.remote.errors import (
    RemoteError,
    RemoteInterrupted,
    RemoteMalformed,
    RemoteModelMissing,
)
from hearth.backends.remote.models import ModelFinder, describe, list_models
from hearth.backends.remote.refusals import model_missing
from hearth.backends.remote.server import RemoteServer

_LIKE_VLLM: Final = ("vllm", "sglang")
_TEMPLATE_FIELDS: Final = (
    *("model", "messages", "tools", "chat_template_kwargs", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message"),
)


class RemoteBackend:
    """`contract.Backend` over HTTP. Parameters that the server does not support are refused by
    name. Tokens have no ids, because such servers do not send them.

    Args:
        connection: the connection to the server.
        finder: finds the model among those of the server.
        spec: the model as front ends name it.
    """

    def __init__(self, connection: Connection, finder: ModelFinder, spec: ModelSpec) -> None:
        self._connection = connection
        self._server = connection.server
        self._finder = finder
        self.spec = spec

    async def info(self) -> ModelInfo:
        """The description of the model, requested from the server. Raises HearthError."""
        begun_s = time.perf_counter()
        model = await self._finder.find(refresh=True)
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
        """Token ids of `text`. vLLM and SGLang always recognise special tokens in it.

        Raises:
            UnsupportedParameter: this kind of server has no tokenizer endpoint.
        """
        kind = (await self._finder.find()).dialect.kind
        if kind in _LIKE_VLLM:
            return await self._ids({"prompt": text, "add_special_tokens": add_special})
        body: dict[str, Any] = {"content": text, "parse_special": special}
        if add_special or kind == "llama-server":
            body["add_special"] = add_special
        return await self._ids(body)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Raises as `tokenize` does."""
        kind = (await self._finder.find()).dialect.kind
        body: dict[str, Any] = {"tokens": list(ids)}
        if kind == "sglang":
            body["skip_special_tokens"] = False
        return await self._text("detokenize", body)

    async def render(self, request: Request) -> Prompt:
        """The prompt that the model would get for `request`. Raises as `tokenize` does."""
        request = typed(request)
        validate(request, None)
        if request.token_ids is not None:
            return Prompt(await self.detokenize(request.token_ids), tuple(request.token_ids))
        model = await self._finder.find()
        is_hearth = model.dialect.kind == "hearth"
        if request.text is not None:
            # Of these servers, only Hearth recognizes no special tokens in a text to complete.
            special = not is_hearth
            text_ids = await self.tokenize(request.text, special=special, add_special=True)
            return Prompt(request.text, tuple(text_ids))
        # max_tokens does not affect the prompt, so it is left out.
        tools = () if request.tool_choice == "none" else request.tools
        shown = replace(request, max_tokens=None, tools=tools)
        body = write_body(shown, model.dialect, self._server.name, model.name)
        asked: dict[str, Any] = {name: body[name] for name in _TEMPLATE_FIELDS if name in body}
        # Among the template endpoints, only that of llama-server reads all fields of a chat.
        if model.dialect.kind != "llama-server" and asked.pop("reasoning_effort", None):
            asked["chat_template_kwargs"] = dict(request.template_values)
        if model.dialect.kind in _LIKE_VLLM:
            ids = await self._ids(asked)
            return Prompt(await self.detokenize(ids), tuple(ids))
        text = await self._text("apply-template", asked, "messages")
        # From the text, special tokens typed in messages could not be told from the template's.
        ids = await (self._ids(asked) if is_hearth else self.tokenize(text, special=True))
        return Prompt(text, tuple(ids))

    async def restore(self, request: Request) -> None:
        """Does nothing: no API supports this."""

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        """Log probability of each of `ids` given the tokens before it, and the `top` likeliest
        tokens at its position. They come from a completion with echo, whose one new token is left
        out.

        Raises:
            UnsupportedParameter: this kind of server gives no log probabilities for a prompt.
        """
        model = await self._finder.find()
        if not model.dialect.echoes:
            raise model.dialect.refusal(
                self._server.name,
                "token_ids",
                "it scores no text of others",
                "Score with a model that runs here, or one that vLLM serves.",
            )
        body = {
            "prompt": list(ids),
            "max_tokens": 1,
            "echo": True,
            "logprobs": top,
            "temperature": 0,
        }
        answer = await self._post("completions", body)
        wanted = len(ids) - 1
        with self._well_formed("log probabilities"):
            logprobs = text_logprobs(answer["choices"][0]["logprobs"])
            if not wanted <= len(logprobs) <= wanted + 1:
                raise ValueError(f"{len(logprobs)} for {len(ids)} tokens")
        tokens = tuple(replace(token, top=token.top[:top]) for token in logprobs[:wanted])
        return Scores(tuple(token.logprob for token in tokens), tokens if top else ())

    async def embed(
        self,
        texts: Sequence[str | tuple[int, ...]],
        *,
        pooling: Pooling = "model",
        session: str = "",
        truncate: bool = False,
    ) -> Embeddings:
        """One vector of length 1 for each text; the server decides whether long texts are cut.

        Raises `UnsupportedParameter` for any pooling but the model's own.
        """
        if pooling != "model":
            dialect = (await self._finder.find()).dialect
            why = "how it pools is its server's choice"
            raise dialect.refusal(self._server.name, "pooling", why, "Leave pooling out.")
        inputs = [text if isinstance(text, str) else list(text) for text in texts]
        answer = await self._post("embeddings", {"input": inputs, "encoding_format": "float"})
        with self._well_formed("embeddings"):
            entries = sorted(answer["data"], key=lambda entry: entry["index"])
            vectors = tuple(_unit(entry["embedding"]) for entry in entries)
            if len(vectors) != len(inputs):
                raise ValueError(f"{len(vectors)} vectors for {len(inputs)} texts")
            return Embeddings(vectors, _prompt_tokens(answer))

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        """How well each text answers `query`."""
        answer = await self._post("rerank", {"query": query, "documents": list(texts)})
        with self._well_formed("ranks"):
            by_index = {e["index"]: finite(e["relevance_score"]) for e in answer["results"]}
            scores = tuple(by_index[index] for index in range(len(texts)))
            return Ranks(scores, _prompt_tokens(answer))

    async def _post(self, path: str, body: dict[str, Any], root: str = "") -> Any:
        """The model's answer to `body`, posted to `path` of OpenAI's API or below `root`."""
        model = await self._finder.find()
        url = f"{root or self._server.url}/{path}"
        return await self._connection.fetch(url, {"model": model.name, **body})

    async def _ids(self, body: dict[str, Any]) -> list[int]:
        """The token ids in the answer to `body`."""
        await self._check_tells("text")
        answer = await self._post("tokenize", body, self._server.root)
        with self._well_formed("tokens"):
            ids: list[int] = answer["tokens"]
            if not all(type(item) is int and item >= 0 for item in ids):
                raise ValueError("no ids")
            return list(ids)

    async def _text(self, path: str, body: dict[str, Any], param: str = "token_ids") -> str:
        """The text in the answer to `body`."""
        await self._check_tells(param)
        answer = await self._post(path, body, self._server.root)
        with self._well_formed("text"):
            for name in ("prompt", "content", "text"):
                if isinstance(text := answer.get(name), str):
                    return text
            raise LookupError("no string")

    async def _check_tells(self, param: str) -> None:
        """Raises `UnsupportedParameter` if the server only has OpenAI's API."""
        dialect = (await self._finder.find()).dialect
        if dialect.kind in ("openai", "other"):
            raise dialect.refusal(
                self._server.name,
                param,
                "its server does not say how it makes tokens of a text",
                "Hearth, vLLM, SGLang and llama-server do.",
            )

    @contextlib.contextmanager
    def _well_formed(self, what: str) -> Iterator[None]:
        """Raises `RemoteMalformed` if the block fails to read `what` from the answer."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"answers without {what}, or in another form than OpenAI's ({error!r})."
            raise self._server.error(RemoteMalformed, what) from error

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        request = typed(request)
        validate(request, None)
        model = await self._finder.find()
        body = write_body(request, model.dialect, self._server.name, model.name)
        reader = ChunkReader(self._server, request, notices(request, model.dialect))
        path = "chat/completions" if request.messages is not None else "completions"
        try:
            async with (
                self._connection.stream(f"{self._server.url}/{path}", body) as pieces,
                contextlib.aclosing(reader.events(pieces)) as events,
            ):
                async for event in events:
                    yield event
        except RemoteModelMissing as error:
            raise await self._which_models(model.name, error) from error

    async def _which_models(self, name: str, error: RemoteModelMissing) -> HearthError:
        """`error`, with the names of the models that the server has if those are not named yet."""
        if "names" in error.data:
            return error
        try:
            entries = await list_models(self._connection)
        except HearthError:
            return error  # It has the server's reason; why there is no list is of less use.
        names = [entry["id"] for entry in entries]
        return error if name in names else model_missing(self._server, name, names)


class RemoteBackends:
    """The remote models of one front end, each with its own connection, in one event loop.

    Args:
        servers: the servers declared in the settings, by lower-case name.
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


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    """Number of tokens of all texts by `answer`; 0 if missing, as not every server counts them."""
    usage = answer.get("usage") or {}
    return int(finite(usage.get("prompt_tokens", usage.get("total_tokens", 0))))


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    """`vector` scaled to length 1. Raises ValueError if its length is 0 or not finite, TypeError if
    it does not consist of numbers.
    """
    length = math.hypot(*map(finite, vector))
    if not length or not math.isfinite(length):
        raise ValueError("a vector without a length")
    return tuple(value / length for value in vector)
