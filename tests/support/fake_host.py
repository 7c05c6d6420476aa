"""A host without processes for tests of the front end: it answers from a script.

In a test: `FakeHost(script)` in place of `HostClient`. In a terminal of its own:
`python fake_host.py SCRIPT.json ARGUMENTS...` runs the command `hearth ARGUMENTS...` over the
script in that file.

A script is {"info": {...}, "answers": [[step, ...], ...], "log": path}. A step is {"text": "..."}
(a `Token`, of the choice "index"), {"prompt_tokens": n, "notices": [...], "cached_tokens": n} (the
`Started`), {"progress": [done, total]}, {"finish": reason}, of one choice if that has an "index",
{"error": {"code": ..., "message": ...}} (a `Failed`), or {"wait": true}, which never ends by
itself. After the last answer, questions are echoed. With "loads_forever" true, no model is ever
loaded; with "unreachable": "why", there is no host, and with "no_host" true none may be started.
"workers" are what is loaded: `WorkerStats` as objects, "engine" an object of `EngineStats`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hearth.backends.contract import (
    ChoiceFinished,
    Embeddings,
    EngineStats,
    ErrorInfo,
    Failed,
    Finished,
    HostStats,
    ModelInfo,
    Progress,
    Scores,
    Started,
    Timings,
    Token,
    TokenLogprob,
    Usage,
    WorkerStats,
)
from hearth.backends.errors import NoHost, from_info

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
}


class FakeHost:
    """Stands for `HostClient`; notes what it was asked."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script
        self._answers = iter(script.get("answers", []))
        self.requests: list[dict[str, Any]] = []
        self.specs: list[dict[str, Any]] = []
        self.attached = 0
        self.cancelled = 0
        self.lost = False
        self.on_wait = lambda: None
        self.unloaded: list[str | None] = []
        self.loads_forever = script.get("loads_forever", False)

    @asynccontextmanager
    async def attach(self, place, *, start=True, host_idle_s=10.0) -> AsyncIterator[FakeHost]:
        self.attached += 1
        if "unreachable" in self._script:
            raise from_info(ErrorInfo("host_unreachable", self._script["unreachable"]))
        if "no_host" in self._script and not start:
            raise NoHost("No Hearth host is running.")
        self.lost = False
        yield self

    def backend(self, spec):
        self.specs.append(asdict(spec))
        return FakeBackend(self, spec)

    async def stats(self):
        workers = tuple(_worker(worker) for worker in self._script.get("workers", []))
        return HostStats(pid=1, version="0", started_at=0.0, clients=1, workers=workers)

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

    def information(self, spec) -> ModelInfo:
        info = {**INFO, "name": spec.name, "path": spec.path, **self._script.get("info", {})}
        if "error" in info:
            raise from_info(ErrorInfo(**info["error"]))
        return ModelInfo(**{**info, "notices": tuple(info.get("notices", ()))})


class FakeBackend:
    def __init__(self, host: FakeHost, spec) -> None:
        self._host = host
        self._spec = spec

    async def info(self):
        if self._host.loads_forever:
            await asyncio.Event().wait()
        return self._host.information(self._spec)

    async def score(self, ids):
        return Scores(tuple(-float(ident) for ident in ids[1:]))

    async def embed(self, texts, *, pooling="model"):
        return Embeddings(tuple((float(len(text)), float(len(pooling))) for text in texts), 7)

    async def generate(self, request):
        tokens, over = 0, False
        try:
            for step in self._host.next_answer(request):
                if step.get("wait"):
                    self._host.on_wait()
                    await asyncio.Event().wait()
                tokens += "text" in step
                event = _event(step, tokens, request)
                over = isinstance(event, Finished | Failed)
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self._host.cancelled += not over
            raise

    async def detokenize(self, ids):
        return "".join(f"<{token}>" for token in ids)


def _worker(worker):
    engine = worker.get("engine")
    info = worker.get("info")
    return WorkerStats(
        **{
            **worker,
            "engine": engine and EngineStats(**engine),
            "info": info and ModelInfo(**{**INFO, **info}),
        }
    )


def _event(step, tokens, request):
    if "text" in step:
        text = step["text"]
        logprobs = None
        if request.sampling.logprobs is not None:
            top = ((tokens, text, -0.5),) * request.sampling.logprobs
            logprobs = (TokenLogprob(tokens, text, -0.5, top),)
        return Token(text, (tokens,), logprobs, step.get("index", 0))
    if "progress" in step:
        return Progress(*step["progress"])
    if "finish" in step and "index" in step:
        return ChoiceFinished(step["index"], step["finish"], step.get("stop"))
    if "finish" in step:
        usage = Usage(7, step.get("cached_tokens", 0), tokens)
        return Finished(
            step["finish"], usage, Timings(ttft_s=0.25, decode_tok_per_s=50.0), step.get("stop")
        )
    if "error" in step:
        return Failed(ErrorInfo(**step["error"]))
    return Started(step["prompt_tokens"], 0, tuple(step.get("notices", ())))


def main() -> int:
    from hearth.app import host_link
    from hearth.app.cli.main import main as hearth

    script = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    host_link.HostClient = FakeHost(script)
    if "serve" in sys.argv:
        from hearth.app.server import connection

        connection.HostClient = host_link.HostClient
    return hearth(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
