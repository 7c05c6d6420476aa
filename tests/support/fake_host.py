"""A host without processes for tests of the front end: it answers from a script.

In a test: `FakeHost(script)` in place of `HostClient`. In a separate terminal:
`python fake_host.py SCRIPT.json ARGUMENTS...` runs the command `hearth ARGUMENTS...` over the
script in that file.

A script is {"info": {...}, "answers": [[step, ...], ...], "log": path}. A step is one of

- {"text": "..."} or {"reasoning": "..."}: a `Token` of that channel, of the choice "index",
- {"call": {"position": 0, "id": ..., "name": ..., "arguments": ...}}: a `ToolCallPart`,
- {"prompt_tokens": n, "notices": [...], "cached_tokens": n}: the `Started`,
- {"progress": [done, total]},
- {"finish": reason, "stop": ..., "notices": [...], "prompt_tokens": 7, "cached_tokens": 0,
  "kept_tokens": 0}: the `Finished`, or a `ChoiceFinished` if it has an "index",
- {"error": {"code": ..., "message": ...}}: a `Failed`,
- {"wait": true}, which never ends by itself; a test may set `resume` to an event that ends it.

Text, reasoning and calls are one token each, numbered from 1, unless they have their own "ids".
After the last answer, questions are echoed. With "loads_forever" true, no model is ever loaded;
with "unreachable": "why", there is no host, and with "no_host" true none may be started. "workers"
are the loaded models: `WorkerStats` as objects, "engine" an object of `EngineStats`; fields that
are missing come from `WORKER`, in "info" from `INFO` and in "engine" from `ENGINE`. "refused":
{"rank": {"code": ..., "message": ...}} makes that call of a backend fail, and "vectors" are the
embeddings to return, in order.

A text is one token per character, 1000 more than its code point; <5>, where it is read as a special
token, is the token 5. Every prompt has 7 tokens unless its steps set another number.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hearth.backends.contract.events import (
    ChoiceFinished,
    Embeddings,
    Failed,
    Finished,
    Progress,
    Prompt,
    Ranks,
    Scores,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.loaded import EngineStats, HostStats, ModelInfo, WorkerStats
from hearth.backends.errors import ErrorInfo, ModelNotFound, NoHost, from_info

PROMPT_TOKENS = 7
FIRST_CHARACTER = 1000
SPECIAL = re.compile(r"<(\d{1,3})>")
INFO = {
    "backend": "llamacpp",
    "backend_version": "fake",
    "architecture": "llama",
    "quantization": "F32",
    "parameters": 100_000,
    "size_bytes": 400_000,
    "context": 512,
    "trained_context": 512,
    "vocab_size": 270,
    "kv_bytes_per_token": 256,
    "kv_type": "f16",
    "threads": 2,
    "batch_threads": 2,
    "gpu_layers": 0,
    "load_s": 0.1,
    "has_chat_template": True,
    "template_sha256": "0" * 64,
    "capabilities": ("chat", "tools", "thinking", "infill", "embed", "rank"),
    "max_sessions": 8,
    "max_batch_tokens": 512,
}
WORKER = {"pid": 1, "running": 0, "waiting": 0, "restarts": 0, "idle_s": 0.0}
ENGINE = {
    "running": 0,
    "waiting": 0,
    "pool_tokens": 4096,
    "allocated_tokens": 512,
    "live_tokens": 0,
    "kept_tokens": 0,
    "kept_prefixes": 0,
    "kv_bytes_per_token": 256,
}


class FakeHost:
    """Replaces `HostClient`; records its calls."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script
        self._answers = iter(script.get("answers", []))
        self._vectors = iter(script.get("vectors", []))
        self.requests: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.cleared: list[str] = []
        self.workers = [_worker(worker) for worker in script.get("workers", [])]
        self.specs: list[dict[str, Any]] = []
        self.attached = 0
        self.cancelled = 0
        self.lost = False
        self.on_wait = lambda: None
        self.resume: asyncio.Event | None = None
        self.unloaded: list[str | None] = []
        self.loads_forever = script.get("loads_forever", False)

    @asynccontextmanager
    async def attach(
        self, place, *, start=True, host_idle_s=10.0, limits=None
    ) -> AsyncIterator[FakeHost]:
        self.attached += 1
        if "unreachable" in self._script:
            raise from_info(ErrorInfo("host_unreachable", self._script["unreachable"]))
        if "no_host" in self._script and not start:
            raise NoHost("No Hearth host is running.")
        self.lost = False
        yield self

    def backend(self, spec, session=""):
        self.specs.append(asdict(spec))
        return FakeBackend(self, spec)

    async def stats(self):
        return HostStats(pid=1, version="0", started_at=0.0, clients=1, workers=tuple(self.workers))

    async def clear_cache(self, model, *, load=True):
        for at, worker in enumerate(self.workers):
            if worker.path == model.path and worker.info is not None:
                left = replace(
                    worker.engine or EngineStats(**ENGINE),
                    kept_tokens=0,
                    kept_prefixes=0,
                    pinned_tokens=0,
                    offloaded_tokens=0,
                    offloaded_prefixes=0,
                    disk_tokens=0,
                    disk_bytes=0,
                )
                self.workers[at] = replace(worker, engine=left)
                self.cleared.append(worker.name)
                return left
        if load:
            return EngineStats(**ENGINE)
        raise ModelNotFound(f"{model.name} is not loaded.")

    async def unload(self, model=None):
        self.unloaded.append(model)
        return 1

    def next_answer(self, request):
        self.requests.append(asdict(request))
        if "log" in self._script:
            with Path(self._script["log"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(request)) + "\n")
        asked = request.messages[-1].content if request.messages else request.text
        return next(self._answers, [{"text": f"echo: {asked}"}, {"finish": "stop"}])

    def next_vector(self, otherwise):
        return tuple(next(self._vectors, otherwise))

    def note(self, name, *arguments):
        self.calls.append((name, *arguments))
        refused = self._script.get("refused", {})
        if name in refused:
            raise from_info(ErrorInfo(**refused[name]))

    def information(self, spec) -> ModelInfo:
        info = {**INFO, "name": spec.name, "path": spec.path, **self._script.get("info", {})}
        if "error" in info:
            raise from_info(ErrorInfo(**info["error"]))
        return _info(info)


class FakeBackend:
    def __init__(self, host: FakeHost, spec) -> None:
        self._host = host
        self._spec = spec

    async def info(self):
        if self._host.loads_forever:
            await asyncio.Event().wait()
        return self._host.information(self._spec)

    async def score(self, ids, *, top=0, session=""):
        self._host.note("score", tuple(ids), top)
        tokens = tuple(
            TokenLogprob(ident, _said(ident), -float(ident), _likeliest(top)) for ident in ids[1:]
        )
        return Scores(tuple(token.logprob for token in tokens), tokens if top else ())

    async def embed(self, texts, *, pooling="model", session="", truncate=False):
        self._host.note("embed", tuple(texts), pooling)
        return Embeddings(
            tuple(self._host.next_vector((float(len(t)), float(len(pooling)))) for t in texts),
            PROMPT_TOKENS,
        )

    async def rank(self, query, texts, *, session=""):
        """The score of a text is the number of the query's words in it."""
        self._host.note("rank", query, tuple(texts))
        wanted = set(query.split())
        return Ranks(tuple(float(len(wanted & set(t.split()))) for t in texts), PROMPT_TOKENS)

    async def render(self, request):
        self._host.note("render", request)
        if request.token_ids is not None:
            return Prompt(await self.detokenize(request.token_ids), request.token_ids)
        lines = [f"<{message.role}>{message.content}" for message in request.messages or ()]
        text = "\n".join(lines) if request.text is None else request.text
        return Prompt(text, tuple(_ids(text)))

    async def restore(self, request):
        self._host.note("restore", request)

    async def tokenize(self, text, *, special=False, add_special=False):
        self._host.note("tokenize", text, special)
        return _ids(text, special=special)

    async def generate(self, request):
        said, over = Usage(PROMPT_TOKENS), False
        try:
            for step in self._host.next_answer(request):
                if step.get("wait"):
                    self._host.on_wait()
                    await (self._host.resume or asyncio.Event()).wait()
                    continue
                said, event = _event(step, said, request)
                over = isinstance(event, Finished | Failed)
                if isinstance(event, Failed) and event.error.code == "host_unreachable":
                    self._host.lost = True
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self._host.cancelled += not over
            raise

    async def detokenize(self, ids):
        return "".join(map(_said, ids))


def _said(ident):
    return f"<{ident}>" if ident < FIRST_CHARACTER else chr(ident - FIRST_CHARACTER)


def _ids(text, *, special=False):
    ids, at = [], 0
    while at < len(text):
        found = SPECIAL.match(text, at) if special else None
        ids.append(int(found[1]) if found else FIRST_CHARACTER + ord(text[at]))
        at = found.end() if found else at + 1
    return ids


def _likeliest(top):
    return tuple((ident, _said(ident), -float(ident)) for ident in range(1, top + 1))


def _worker(worker):
    named = {name: worker[name] for name in ("name", "path")}
    engine, info = worker.get("engine"), worker.get("info")
    return WorkerStats(
        **{
            **WORKER,
            **worker,
            "engine": None if engine is None else EngineStats(**{**ENGINE, **engine}),
            "info": None if info is None else _info({**INFO, **named, **info}),
        }
    )


def _info(info):
    lists = {name: tuple(info.get(name, ())) for name in ("notices", "capabilities")}
    return ModelInfo(**{**info, **lists})


def _event(step, said, request):
    """(`said` with the tokens of `step` counted, the event of `step`)."""
    ids = tuple(step.get("ids", ()))
    if "text" in step or "reasoning" in step or "call" in step:
        ids = ids or (said.completion_tokens + 1,)
        said = replace(
            said,
            completion_tokens=said.completion_tokens + len(ids),
            reasoning_tokens=said.reasoning_tokens + len(ids) * ("reasoning" in step),
        )
    return said, _event_of(step, said, ids, request)


def _event_of(step, said, ids, request):
    if "call" in step:
        return ToolCallPart(**step["call"], ids=ids, index=step.get("index", 0))
    if "text" in step or "reasoning" in step:
        channel = "content" if "text" in step else "reasoning"
        text = step.get("text", step.get("reasoning"))
        logprobs = None
        if request.sampling.logprobs is not None:
            tokens = said.completion_tokens
            top = ((tokens, text, -0.5),) * request.sampling.logprobs
            logprobs = (TokenLogprob(tokens, text, -0.5, top),)
        return Token(text, ids, logprobs, step.get("index", 0), channel)
    if "progress" in step:
        return Progress(*step["progress"])
    if "finish" in step and "index" in step:
        return ChoiceFinished(step["index"], step["finish"], step.get("stop"))
    if "finish" in step:
        prompt = ("prompt_tokens", "cached_tokens", "kept_tokens")
        return Finished(
            step["finish"],
            replace(said, **{name: step[name] for name in prompt if name in step}),
            Timings(ttft_s=0.25, decode_tok_per_s=50.0),
            step.get("stop"),
            tuple(step.get("notices", ())),
        )
    if "error" in step:
        return Failed(ErrorInfo(**step["error"]))
    return Started(
        step["prompt_tokens"], step.get("cached_tokens", 0), tuple(step.get("notices", ()))
    )


def main() -> int:
    from hearth.app.cli.main import main as hearth
    from hearth.backends.host import client

    script = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    client.HostClient = FakeHost(script)
    return hearth(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
