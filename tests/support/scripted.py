"""Models with scripted answers, for tests of front ends that use `Backend`s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fake_host import INFO
from hearth.backends.contract.events import (
    Embeddings,
    Event,
    Failed,
    Finished,
    Progress,
    Prompt,
    Ranks,
    Scores,
    Started,
    Timings,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.loaded import HostStats, ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError, to_info


@dataclass
class Script:
    """The output of one model.

    Attributes:
        reply: the answer, or a function of the request that gives it; sent word by word.
        reasoning: sent before the reply.
        calls: (name, arguments) of tool calls, sent after the reply.
        gate: if set, acquired before each word: release it to let one word through.
        tok_per_s: words per second; 0: as fast as they can be read.
        prefill: (done, total) steps before the first word.
        error: raised after the reply.
    """

    reply: str | Callable[[Request], str] = "It works."
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    gate: asyncio.Semaphore | None = None
    tok_per_s: float = 0.0
    prefill: Sequence[tuple[int, int]] = ()
    error: HearthError | None = None
    info: dict[str, Any] = field(default_factory=dict)


class ScriptedModel:
    """A `contract.Backend` that follows a `Script` and records its requests."""

    def __init__(self, spec: ModelSpec, script: Script) -> None:
        self.spec = spec
        self.script = script
        self.requests: list[Request] = []
        self.restored: list[Request] = []
        self.cancelled = 0

    async def info(self) -> ModelInfo:
        told = {"path": self.spec.path, "has_chat_template": True, **self.script.info}
        return ModelInfo(**{**INFO, "name": self.spec.name or "model", **told})

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        self.requests.append(request)
        over = False
        try:
            async for event in self._events(request):
                yield event
            over = True
        finally:
            self.cancelled += not over

    async def _events(self, request: Request) -> AsyncIterator[Event]:
        script = self.script
        said = 0
        prompt = sum(len(message.content.split()) for message in request.messages or ())
        yield Started(prompt, 0)
        for done, total in script.prefill:
            yield Progress(done, total)
            await self._turn()
        reply = script.reply if isinstance(script.reply, str) else script.reply(request)
        for channel, text in (("reasoning", script.reasoning), ("content", reply)):
            for word in _words(text):
                await self._turn()
                said += 1
                yield Token(word, (said,), channel=channel)  # type: ignore[arg-type]
        for position, (name, arguments) in enumerate(script.calls):
            await self._turn()
            yield ToolCallPart(position, f"call-{position}", name, arguments, (said,))
        if script.error is not None:
            yield Failed(to_info(script.error))
            return
        reason = "tool_calls" if script.calls else "stop"
        usage = Usage(prompt, 0, said)
        timings = Timings(ttft_s=0.25, decode_s=1.0, decode_tok_per_s=42.0)
        yield Finished(reason, usage, timings)  # type: ignore[arg-type]

    async def _turn(self) -> None:
        if self.script.gate is not None:
            await self.script.gate.acquire()
        await asyncio.sleep(1 / self.script.tok_per_s if self.script.tok_per_s else 0)

    async def tokenize(self, text: str, *, special: bool = False, **_: Any) -> list[int]:
        return list(range(len(text.split())))

    async def detokenize(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    async def restore(self, request: Request) -> None:
        self.restored.append(request)

    async def render(self, request: Request) -> Prompt:
        text = "".join(f"<{m.role}>{m.content}" for m in request.messages or ())
        return Prompt(text, tuple(text.encode()))

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        return Scores(tuple(-1.0 for _ in ids[1:]))

    async def embed(self, texts: Sequence[Any], **_: Any) -> Embeddings:
        return Embeddings(tuple((1.0,) for _ in texts), len(texts))

    async def rank(self, query: str, texts: Sequence[str], **_: Any) -> Ranks:
        return Ranks(tuple(0.0 for _ in texts), len(texts))


@dataclass
class ScriptedHost:
    """A `HostConnection` over scripts by model name; other models reply that they work."""

    scripts: dict[str, Script] = field(default_factory=dict)
    models: dict[str, ScriptedModel] = field(default_factory=dict)
    told: HostStats | None = None
    unloaded: list[str] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)

    async def backend(self, spec: ModelSpec, session: str = "") -> ScriptedModel:
        script = self.scripts.get(spec.name, Script())
        model = self.models.setdefault(spec.name, ScriptedModel(spec, script))
        model.script = script
        return model

    async def stats(self) -> HostStats | None:
        return self.told

    async def unload(self, model: str) -> int:
        self.unloaded.append(model)
        if self.told is not None:
            left = [worker for worker in self.told.workers if worker.name != model]
            self.told = replace(self.told, workers=tuple(left))
        return 1

    async def end_request(self, pid: int, request: int) -> bool:
        self.ended.append((pid, request))
        return True


def _words(text: str) -> list[str]:
    """`text` in pieces that end in a space or a newline."""
    pieces: list[str] = []
    for char in text:
        if pieces and not pieces[-1].endswith((" ", "\n")):
            pieces[-1] += char
        else:
            pieces.append(char)
    return pieces


def failing(error: Exception) -> Callable[..., Awaitable[Any]]:
    """An asynchronous function that raises `error`."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
