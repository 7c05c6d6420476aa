"""The Python API: `LLM`, and `AsyncLLM` for event loops, over the host of all front ends."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from hearth.app.answer import Answer
from hearth.app.chosen import Chosen, library_of, with_settings
from hearth.app.host_connection import HostConnection
from hearth.app.host_link import LoopThread
from hearth.app.nearest import did_you_mean
from hearth.app.overflow import Overflow
from hearth.app.paths import find_paths
from hearth.app.server.messages import with_system
from hearth.app.settings import layer_of, load_settings
from hearth.app.tasks import all_of
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import Scores, Timings, Token, TokenLogprob, Usage
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import (
    BeamSearch,
    Constraint,
    Pooling,
    Request,
    Tool,
    ToolChoice,
)
from hearth.backends.contract.sampling import SamplingParams, Speculate, SpeculateRule
from hearth.backends.errors import Busy, HearthError, InvalidParameter

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncStream",
    "BeamSearch",
    "Completion",
    "Constraint",
    "HearthError",
    "Message",
    "SamplingParams",
    "Stream",
    "Tool",
]

S = TypeVar("S")
T = TypeVar("T")

Chat = str | Sequence[Message | Mapping[str, str]]
"""A question, or the messages of a chat: `Message`s, or dictionaries with "role" and "content"."""

_MESSAGE_KEYS: Final = ("role", "content", "reasoning", "name", "tool_call_id")
_BUSY_S: Final = 1.0


class NotUsableHere(HearthError):
    """An `LLM` was called inside an event loop, which it would block, or after it was closed."""

    code = "not_usable_here"


class Options(TypedDict, total=False):
    """Further options of a request: fields of `hearth.backends.contract.requests.Request`."""

    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    skip_special_tokens: bool
    constraint: Constraint | None
    tools: Sequence[Tool]
    tool_choice: ToolChoice
    forced_tool: str
    parallel_tool_calls: bool
    template_values: dict[str, Any]
    truncate_prompt_tokens: int | None
    attention_sinks: int | None
    priority: int
    beams: BeamSearch | None
    speculate: Speculate | None
    speculate_rule: SpeculateRule | None


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that a model generated for one prompt.

    Attributes:
        reasoning: what the model wrote before its answer, if it reasons.
        finish_reason: "stop", "length", "tool_calls"; "cancelled": another program ended the
            request; empty: it is still being generated.
        logprobs: of the tokens of `text`, if `SamplingParams.logprobs` asks for them.
        notices: what the user should know about it, e.g. that a parameter had no effect.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    usage: Usage
    timings: Timings
    notices: tuple[str, ...]


class AsyncLLM(AbstractAsyncContextManager["AsyncLLM"]):
    """A model for programs with an event loop. Its methods are those of `LLM`, as coroutines."""

    def __init__(self, model: str = "", **settings: Any) -> None:
        self._model = model
        self._flags = settings
        self._choosing = threading.Lock()
        self._chosen: Chosen | None = None
        self._host: HostConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from the host. The next call connects again."""
        host, self._host = self._host, None
        if host is not None and self._loop is asyncio.get_running_loop():
            await host.close()

    async def info(self) -> ModelInfo:
        """See `LLM.info`."""
        return await (await self._backend()).info()

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompts: str, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[str],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...
    async def generate(
        self,
        prompts: str | Sequence[str],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """See `LLM.generate`."""
        if isinstance(prompts, str):
            return (await self.generate([prompts], params, **options))[0]
        backend = await self._backend()
        requests = [
            self._request(params, options, text=_text(text, f"prompts[{index}]"))
            for index, text in enumerate(prompts)
        ]
        return await self._each(lambda request: _complete(backend, request), requests)

    @overload
    async def chat(  # type: ignore[overload-overlap]
        self, messages: Chat, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def chat(
        self,
        messages: Sequence[str] | Sequence[Sequence[Message | Mapping[str, str]]],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...
    async def chat(
        self,
        messages: Chat | Sequence[str] | Sequence[Sequence[Message | Mapping[str, str]]],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """See `LLM.chat`."""
        first = messages[0] if messages else None
        is_one = isinstance(messages, str) or isinstance(first, (Message, Mapping))
        chats: Any = [messages] if is_one else messages
        backend = await self._backend()
        requests = [self._request(params, options, messages=self._messages(chat)) for chat in chats]
        overflow = self._overflow
        done = await self._each(lambda request: _complete(backend, request, overflow), requests)
        return done[0] if is_one else done

    def stream(
        self,
        messages: Chat,
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """See `LLM.stream`; for `async for`."""

        async def begin() -> tuple[Backend, Request, Overflow]:
            backend = await self._backend()
            if raw:
                request = self._request(params, options, text=_text(messages, "messages"))
            else:
                request = self._request(params, options, messages=self._messages(messages))
            return backend, request, self._overflow

        return AsyncStream(begin)

    @overload
    async def embed(self, texts: str, *, pooling: Pooling = "model") -> tuple[float, ...]: ...  # type: ignore[overload-overlap]
    @overload
    async def embed(
        self, texts: Sequence[str], *, pooling: Pooling = "model"
    ) -> list[tuple[float, ...]]: ...
    async def embed(
        self, texts: str | Sequence[str], *, pooling: Pooling = "model"
    ) -> tuple[float, ...] | list[tuple[float, ...]]:
        """See `LLM.embed`."""
        backend = await self._backend()
        if isinstance(texts, str):
            return (await backend.embed([texts], pooling=pooling)).vectors[0]
        return list((await backend.embed(texts, pooling=pooling)).vectors)

    @overload
    async def score(self, texts: str, *, top: int = 0) -> Scores: ...  # type: ignore[overload-overlap]
    @overload
    async def score(self, texts: Sequence[str], *, top: int = 0) -> list[Scores]: ...
    async def score(self, texts: str | Sequence[str], *, top: int = 0) -> Scores | list[Scores]:
        """See `LLM.score`."""
        if isinstance(texts, str):
            return (await self.score([texts], top=top))[0]
        backend = await self._backend()

        async def score(text: str) -> Scores:
            ids = await backend.tokenize(_text(text, "texts"), add_special=True)
            return await backend.score(ids, top=top)

        return await self._each(score, texts)

    def choose(self) -> Chosen:
        """The model, looked up in the library on the first call, which may be slow on a slow disk.

        Raises:
            ModelNotFound, UnsupportedModel, CorruptFile: as `hearth run` does.
            SettingsError: the settings cannot be used.
        """
        with self._choosing:
            if self._chosen is None:
                paths = find_paths()
                flags = layer_of(self._flags, "LLM(…)")
                settings = load_settings(paths.settings_file).with_flags(flags)
                model = library_of(paths, settings).resolve(self._model or settings.text("model"))
                self._place, self._settings = paths.host_place(), settings
                self._chosen = with_settings(model, settings)
            return self._chosen

    async def _backend(self) -> Backend:
        chosen = self._chosen
        if chosen is None:
            chosen = await asyncio.to_thread(self.choose)
        loop = asyncio.get_running_loop()
        if self._host is None or self._loop is not loop:
            self._loop = loop
            self._host = HostConnection(self._place, *self._settings.host_options)
        return await self._host.backend(chosen.spec)

    @property
    def _overflow(self) -> Overflow:
        return self.choose().use.context_overflow or "refuse"

    def _messages(self, chat: Chat) -> tuple[Message, ...]:
        return with_system(_messages(chat), self.choose().use.system)

    def _request(self, params: SamplingParams | None, options: Options, **prompt: Any) -> Request:
        for name in options.keys() - Options.__annotations__.keys():
            raise InvalidParameter(
                name,
                f"There is no option {name!r}.{did_you_mean(name, Options.__annotations__)}",
                "How tokens are drawn is set in SamplingParams, how a model is loaded in LLM(…).",
            )
        use = self.choose().use
        stop = options.get("stop", use.stop)
        given = {
            "max_tokens": use.max_tokens,
            "attention_sinks": use.attention_sinks,
            **options,
            "stop": (stop,) if isinstance(stop, str) else stop,
            "sampling": params or use.sampling,
        }
        fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        return Request(**fields, **prompt)

    async def _each(self, do: Callable[[S], Coroutine[Any, Any, T]], items: Sequence[S]) -> list[T]:
        """The results of `do` for each of `items`, with as many running as the model has sessions,
        and as many more waiting. If one fails, the others are cancelled.
        """

        async def one(numbered: tuple[int, S]) -> T:
            index, item = numbered
            while True:
                try:
                    return await do(item)
                except Busy as error:
                    wait_s = error.data.get("retry_after_s", _BUSY_S)
                    await asyncio.sleep(float(str(wait_s)))
                except HearthError as error:
                    error.data["index"] = index
                    error.add_note(f"This was number {index} of {len(items)}, from 0.")
                    raise

        return await all_of(one, enumerate(items), 2 * self.choose().use.load.max_sessions)


class AsyncStream(AsyncIterator[str]):
    """The text of an answer, in pieces, as it is generated. Closing or dropping it cancels the
    request.
    """

    def __init__(
        self, begin: Callable[[], Coroutine[Any, Any, tuple[Backend, Request, Overflow]]]
    ) -> None:
        self._answer = Answer()
        self._pieces = _pieces(self._answer, begin)

    @property
    def completion(self) -> Completion:
        """What has been generated so far, including reasoning and tool calls."""
        return _completion(self._answer)

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Cancel the request, unless it is complete."""
        await self._pieces.aclose()


class LLM(AbstractContextManager["LLM"]):
    """A model, in the host process that all programs of this user share.

    Args:
        model: a name that `hearth list` shows, an alias, or the path of a GGUF file or of a folder
            of safetensors; empty: the default model.
        settings: keys of docs/settings.md, e.g. `context=8192`, `backend="native"`. They take
            precedence over the settings file and the environment.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptFile: there is no such model that can run.
        SettingsError: the settings cannot be used.
        NotUsableHere (every method): in a coroutine, use `AsyncLLM`.
    """

    def __init__(self, model: str = "", **settings: Any) -> None:
        self._llm = AsyncLLM(model, **settings)
        self._llm.choose()
        self._thread = LoopThread("hearth LLM", self._llm.close)
        self._finalizer = weakref.finalize(self, self._thread.close)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the host. Also done at exit; the object cannot be used afterwards."""
        self._finalizer()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Ctrl+C cancels it."""
        if self._finalizer.alive and asyncio._get_running_loop() is None:
            return self._thread.run(work)
        work.close()
        if not self._finalizer.alive:
            raise NotUsableHere("This LLM is closed.", "Make another one.")
        raise NotUsableHere(
            "LLM was called inside a running event loop, which it would block.",
            "Use AsyncLLM there, and await its methods.",
        )

    def info(self) -> ModelInfo:
        """Information about the model, which is loaded now instead of with the first request."""
        return self._run(self._llm.info())

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """Complete texts, without a chat template; several are batched together.

        Args:
            prompts: one, or several.
            params: sampling parameters; None: those of the settings for this model.
            options: see `Options`. `max_tokens` and `stop` default to the settings.

        Returns:
            One `Completion`, or a list in the order of `prompts`.

        Raises:
            HearthError: the first error; the other prompts are cancelled. `data["index"]` says
                which prompt failed. `Busy` is not raised: the prompt waits.
        """
        return self._run(self._llm.generate(prompts, params, **options))

    @overload
    def chat(  # type: ignore[overload-overlap]
        self, messages: Chat, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[str] | Sequence[Sequence[Message | Mapping[str, str]]],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Chat | Sequence[str] | Sequence[Sequence[Message | Mapping[str, str]]],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """Answer a chat, or each of a list of chats. The arguments and errors are those of
        `generate`.

        Args:
            messages: a question, the messages of a chat, or a list of either. The setting `system`
                is added to chats without a system message.
        """
        work: Coroutine[Any, Any, Completion | list[Completion]] = self._llm.chat(
            messages, params, **options
        )
        return self._run(work)

    def stream(
        self,
        messages: Chat,
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        **options: Unpack[Options],
    ) -> Stream:
        """The answer to a chat in pieces of text, as it is generated.

        Args:
            raw: `messages` is a text to complete, as in `generate`.
        """
        return Stream(self, self._llm.stream(messages, params, raw=raw, **options))

    @overload
    def embed(self, texts: str, *, pooling: Pooling = "model") -> tuple[float, ...]: ...  # type: ignore[overload-overlap]
    @overload
    def embed(
        self, texts: Sequence[str], *, pooling: Pooling = "model"
    ) -> list[tuple[float, ...]]: ...
    def embed(
        self, texts: str | Sequence[str], *, pooling: Pooling = "model"
    ) -> tuple[float, ...] | list[tuple[float, ...]]:
        """A vector of length 1 (L2) for one text, or a list of them for several.

        Args:
            pooling: "model" is the pooling that the model was trained with, else the mean.
        """
        return self._run(self._llm.embed(texts, pooling=pooling))

    @overload
    def score(self, texts: str, *, top: int = 0) -> Scores: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str], *, top: int = 0) -> list[Scores]: ...
    def score(self, texts: str | Sequence[str], *, top: int = 0) -> Scores | list[Scores]:
        """The natural-log probability of each token of one text, or of several, given the tokens
        before it.

        Args:
            top: also return this many of the likeliest tokens at each position.
        """
        return self._run(self._llm.score(texts, top=top))


class Stream(Iterator[str], AbstractContextManager["Stream"]):
    """The text of an answer, in pieces, as it is generated. Closing or dropping it cancels the
    request.
    """

    def __init__(self, llm: LLM, stream: AsyncStream) -> None:
        self._llm = llm
        self._stream = stream

    def __next__(self) -> str:
        try:
            return self._llm._run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def completion(self) -> Completion:
        """What has been generated so far, including reasoning and tool calls."""
        return self._stream.completion

    def close(self) -> None:
        """Cancel the request, unless it is complete."""
        self._llm._run(self._stream.aclose())


async def _pieces(
    answer: Answer, begin: Callable[[], Coroutine[Any, Any, tuple[Backend, Request, Overflow]]]
) -> AsyncGenerator[str, None]:
    async with aclosing(answer.follow(*await begin())) as events:
        async for event in events:
            if isinstance(event, Token) and event.text and event.channel == "content":
                yield event.text


async def _complete(
    backend: Backend, request: Request, overflow: Overflow = "refuse"
) -> Completion:
    answer = Answer()
    async for _ in answer.follow(backend, request, overflow):
        pass
    return _completion(answer)


def _completion(answer: Answer) -> Completion:
    (choice,) = answer.choices
    return Completion(
        choice.content,
        choice.reasoning,
        choice.calls,
        answer.reason,
        tuple(choice.ids),
        tuple(choice.logprobs),
        answer.usage,
        answer.timings,
        tuple(answer.notices),
    )


def _text(text: object, param: str) -> str:
    if not isinstance(text, str):
        raise InvalidParameter(
            param, f"{param} is {type(text).__name__}, not str.", "chat() takes messages."
        )
    return text


def _messages(chat: Chat) -> tuple[Message, ...]:
    if isinstance(chat, str):
        return (Message("user", chat),)
    return tuple(
        message if isinstance(message, Message) else _message(message, f"messages[{index}]")
        for index, message in enumerate(chat)
    )


def _message(fields: Mapping[str, str], param: str) -> Message:
    for name, value in fields.items():
        if name not in _MESSAGE_KEYS:
            raise InvalidParameter(
                param,
                f"{param} has an unknown key {name!r}.{did_you_mean(name, _MESSAGE_KEYS)}",
                f"The keys are {', '.join(_MESSAGE_KEYS)}; for anything else, pass a Message.",
            )
        _text(value, f"{param}[{name!r}]")
    if "role" not in fields:
        raise InvalidParameter(param, f"{param} has no role.", 'Such as "user".')
    known: Any = fields
    return Message(**known)
