"""The process that runs one model: frames in on stdin, frames out on stdout, everything printed
into the log.

Three kinds of threads: one reads frames, a few prepare requests (template, tokens), the main one
runs the engine; a writer sends what they say, so that a slow reader at the other end does not hold
up a step.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from hearth.backends.contract import wire
from hearth.backends.contract.events import Failed, Finished, Prompt
from hearth.backends.contract.loaded import EngineStats, RequestStats
from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.engine import MOST_REQUESTS, Engine, Work
from hearth.backends.engine.grammars import Grammars
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.disk_files import FOLDER, KvFolder
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sequence import Clock
from hearth.backends.errors import InternalError, to_info
from hearth.backends.machine.fair_pool import FairPool
from hearth.backends.machine.memory import release_free_memory
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.worker.drafting import open_draft, open_heads
from hearth.backends.worker.preparer import Preparer, no_rollback
from hearth.backends.worker.runners import open_model

log = logging.getLogger(__name__)

_PREPARERS = 4
_FORM_PREPARERS = 2
"""Threads for requests with a grammar: compiling it can take seconds, which requests without a
grammar should not wait for.
"""
_LARGE_PREPARERS = 2
"""Threads for calls of more than `_LARGE_TOKENS`: tokenizing megabytes also takes seconds."""
_LARGE_TOKENS = 64 << 10
"""Compared with the upper bound in `Cost`."""
_LARGE_NICE = 10
"""Nice value of threads for large calls: a tenth of the step loop's CPU time if both compete."""
_SWITCH_S = 0.001
"""Interval after which the step loop gets the GIL back from a thread that prepares requests;
Python's default of 5 ms would be a third of a fast model's step.
"""
_LEAVE_S = 2.5
"""The host kills a worker that has not left after 3 s."""
_MOST_WAITING_FRAMES = 4096
"""Frames that may wait for a host that does not read; further senders block."""


class Outbox:
    """Sends frames from a thread of its own, in the order in which they were put.

    A frame that cannot be sent (too large, or text that is not Unicode) becomes a `Failed`; should
    the thread itself fail, the process ends, because a worker that cannot answer must not linger.
    While the host does not read, `put` blocks once `_MOST_WAITING_FRAMES` wait.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frames: deque[tuple[int, wire.Body]] = deque()
        self._came = threading.Event()
        self._sent = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
        self._thread.start()

    def put(self, ident: int, body: wire.Body) -> None:
        while len(self._frames) >= _MOST_WAITING_FRAMES:
            self._sent.clear()
            if len(self._frames) >= _MOST_WAITING_FRAMES:
                self._sent.wait()
        self._frames.append((ident, body))
        if not self._came.is_set():
            self._came.set()

    def close(self) -> None:
        """Send the remaining frames, then end the thread."""
        self._closed = True
        self._came.set()
        self._thread.join()

    def _send(self) -> None:
        """Send frames; those that are put during a write, such as the tokens of a step, are sent
        together.
        """
        try:
            while self._frames or not self._closed:
                self._came.wait()
                while self._frames:
                    self._stream.write(wire.encode_answer(*self._frames.popleft()))
                    if not self._sent.is_set():
                        self._sent.set()
                self._stream.flush()
                self._came.clear()
                if self._frames or self._closed:  # Set between the last check and the clear.
                    self._came.set()
        except OSError:
            os._exit(0)  # The host is gone.
        except BaseException:
            log.exception("sending frames")
            os._exit(1)


class RequestHandler:
    """Answers the host's calls with one loaded model."""

    def __init__(
        self, engine: Engine, preparer: Preparer, tokenizer: Tokenizer, outbox: Outbox
    ) -> None:
        self._engine = engine
        self._preparer = preparer
        self._tokenizer = tokenizer
        self._outbox = outbox
        self._pool = FairPool(_PREPARERS, "prepare")
        self._form_pool = FairPool(_FORM_PREPARERS, "prepare form")
        self._large_pool = FairPool(_LARGE_PREPARERS, "prepare large", _LARGE_NICE)
        self._preparing: dict[int, str] = {}
        """Calls in preparation, with their sessions; a cancelled call is removed at once."""
        self._lock = threading.Lock()

    def take(self, frame: wire.Frame) -> None:
        """Start answering `frame`; called by the reader thread, which never waits here."""
        ident, body = frame.id, frame.body
        if isinstance(body, wire.Cancel):
            if self._prepared(ident):
                self._outbox.put(ident, Finished("cancelled"))
            else:
                self._engine.cancel(ident)
        elif isinstance(body, wire.GetEngineStats):
            self._outbox.put(ident, self._stats())
        elif isinstance(body, wire.ClearCache):
            self._engine.clear_cache(lambda stats: self._outbox.put(ident, stats))
        else:
            with self._lock:
                self._preparing[ident] = frame.session
            pool = self._form_pool if _has_form(body) else self._pool
            is_large = frame.cost is not None and frame.cost.prompt_tokens > _LARGE_TOKENS
            if is_large:
                pool = self._large_pool
            pool.submit(frame.session, partial(self._answer, frame, Clock(), is_large))

    def leave(self) -> None:
        """End all calls, and wait up to `_LEAVE_S` until computed keys and values are on disk."""
        self._engine.close()
        self._engine.ended.wait(_LEAVE_S)

    def _stats(self) -> EngineStats:
        """Statistics of the engine, with the calls in preparation."""
        stats = self._engine.stats()
        with self._lock:
            coming = [RequestStats(*call, "queued") for call in self._preparing.items()]
        requests = (*stats.requests, *coming)[:MOST_REQUESTS]
        return replace(stats, waiting=stats.waiting + len(coming), requests=requests)

    def _answer(self, frame: wire.Frame, clock: Clock, is_large: bool) -> None:
        ident = frame.id
        with self._lock:
            if ident not in self._preparing:
                return  # It was cancelled while it waited for a thread.
        try:
            prepared = self._prepare(frame, clock)
        except BaseException as error:  # A library in Rust that panics raises no Exception.
            if not self._prepared(ident):
                return  # It was cancelled, so it is over and the error does not matter.
            info = to_info(error if isinstance(error, Exception) else RuntimeError(str(error)))
            if info.code == InternalError.code:
                log.exception("answering call %d", ident)
            self._outbox.put(ident, Failed(info))
            return
        finally:
            if is_large:
                release_free_memory()
        with self._lock:  # A cancel comes before this or finds the work in the engine.
            if self._preparing.pop(ident, None) is None:
                return
            if isinstance(prepared, (wire.Ids, wire.Text, Prompt)):
                self._outbox.put(ident, prepared)
            else:
                self._engine.submit(*prepared)

    def _prepare(
        self, frame: wire.Frame, clock: Clock
    ) -> wire.Ids | wire.Text | Prompt | Sequence[Work]:
        """The answer to `frame`, or the work that will give it."""
        ident, session, body = frame.id, frame.session, frame.body
        emit = partial(self._outbox.put, ident)
        match body:
            case wire.Generate():
                request = replace(body.request, session=session)
                return self._preparer.generations(ident, request, emit, clock)
            case wire.Restore():
                request = replace(body.request, session=session)
                return (self._preparer.restoring(ident, request, emit, clock),)
            case wire.Score():
                return (self._preparer.scoring(ident, body, emit, clock, session),)
            case wire.Embed():
                return (self._preparer.embedding(ident, body, emit, session),)
            case wire.Rank():
                return (self._preparer.ranking(ident, body, emit, session),)
            case wire.Tokenize():
                wire.check_answer_fits("text", len(body.text), wire.NUMBER_BYTES)
                whole = body.add_special
                ids = self._tokenizer.encode(
                    body.text, special=body.special, add_bos=whole, add_eos=whole
                )
                return wire.Ids(tuple(ids))
            case wire.Detokenize():
                return wire.Text(self._tokenizer.decode(body.ids))
            case wire.Render():
                return self._preparer.render(body.request)
            case _:
                raise InternalError(f"A worker cannot answer a {type(body).__name__} frame.")

    def _prepared(self, ident: int) -> bool:
        """Remove `ident` from the calls in preparation; False if it was no longer among them."""
        with self._lock:
            return self._preparing.pop(ident, None) is not None


def _read(stream: BinaryIO, opened: Future[RequestHandler], outbox: Outbox) -> None:
    """Pass frames to the request handler until the host closes the pipe. The process then exits,
    even during a load, after writing the remaining keys and values to disk. A body that cannot be
    read fails only its own call.
    """
    try:
        while (frame := wire.read_frame(stream)) is not None:
            if isinstance(frame.body, Failed):  # The body could not be read.
                outbox.put(frame.id, frame.body)
            else:
                opened.result().take(frame)
        if opened.done():
            opened.result().leave()
    except Exception:
        log.exception("reading frames")
        os._exit(1)
    os._exit(0)


def _has_form(body: object) -> bool:
    """Whether `body` asks for an answer that follows a grammar."""
    if not isinstance(body, wire.Generate):
        return False
    request = body.request
    if request.constraint is not None or request.tool_choice == "required":
        return True
    return request.tool_choice == "auto" and any(tool.strict for tool in request.tools)


def serve(
    spec: ModelSpec, load_id: int, requests: BinaryIO, outbox: Outbox, cache_dir: Path
) -> None:
    """Load the model of `spec`, report the result, then answer calls until the host closes the
    pipe.
    """
    opened: Future[RequestHandler] = Future()
    threading.Thread(
        target=_read, args=(requests, opened, outbox), name="reader", daemon=True
    ).start()
    renderer = Renderer()
    try:
        loaded = open_model(spec, cache_dir)
        draft = open_draft(spec, loaded, cache_dir)
        drafters = [*([] if draft is None else [draft]), *open_heads(spec, loaded)]
    except Exception as error:
        log.exception("loading %s", spec.path)
        outbox.put(load_id, Failed(to_info(error)))
        outbox.close()
        return
    if loaded.templates:
        renderer.start()
    info = loaded.runner.info
    disk = _disk(loaded, spec, cache_dir)
    engine = Engine(
        loaded.runner,
        spec.settings.target_itl_ms / 1000,
        disk=disk,
        drafters=drafters,
    )
    if disk is not None and (tokens := disk.latest_tokens):
        engine.kv.expect(tokens)
    grammars = Grammars(loaded.tokenizer, info.vocab_size, info.end_ids)
    preparer = Preparer(
        loaded.info.name,
        info,
        loaded.tokenizer,
        loaded.templates,
        renderer,
        grammars,
        spec.settings,
        drafters={one.mode for one in drafters},
    )
    described = loaded.info
    if spec.settings.speculate not in ("off", "auto") and info.generates and not info.can_roll_back:
        notices = (*described.notices, no_rollback(described.name))
        described = replace(described, notices=notices)
    gc.freeze()  # The loaded objects stay alive, so collections need not scan them.
    opened.set_result(RequestHandler(engine, preparer, loaded.tokenizer, outbox))
    outbox.put(load_id, described)
    try:
        engine.run()
    except BaseException:
        log.exception("the engine stopped")
        os._exit(1)  # At once: the threads that prepare requests need not be waited for.


def _disk(loaded: Loaded, spec: ModelSpec, cache_dir: Path) -> DiskTier | None:
    """The disk tier for this model's keys and values; None if it has none."""
    budget_bytes = spec.settings.kv_disk_budget_bytes
    if not budget_bytes or not loaded.runner.info.generates:
        return None
    info, store = loaded.info, loaded.runner.store
    key = repr((info.backend, info.kv_type, store.token_bytes, store.fingerprint)).encode()
    folder = KvFolder(cache_dir / FOLDER, budget_bytes)
    return DiskTier(folder, key, info.name, budget_bytes)


def main(input_fd: int, output_fd: int) -> None:
    """Entry of `python -m hearth.backends.worker`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Unbuffered: the reader's thread must not hold a buffer's lock when the interpreter ends.
    requests = os.fdopen(input_fd, "rb", buffering=0)
    outbox = Outbox(os.fdopen(output_fd, "wb"))
    frame = wire.read_frame(requests)
    if frame is None:
        return
    if not isinstance(frame.body, wire.Load) or frame.model is None:
        raise wire.WireError("a worker's first frame must be a load with its model")
    serve(frame.model, frame.id, requests, outbox, args.cache)
