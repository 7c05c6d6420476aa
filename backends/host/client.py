"""The front end's side of the connection to the host: attach to the host (starting it if none is
running), and use models as `Backend`s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar, cast

from hearth.backends.contract.events import (
    Embeddings,
    Event,
    Failed,
    Finished,
    Prompt,
    Ranks,
    Scores,
)
from hearth.backends.contract.loaded import EngineStats, HostStats, ModelInfo
from hearth.backends.contract.models import HostLimits, ModelSpec
from hearth.backends.contract.requests import Pooling, Request
from hearth.backends.contract.version import hearth_version
from hearth.backends.contract.wire import (
    PARTS,
    Answer,
    Call,
    Cancel,
    Check,
    ClearCache,
    Detokenize,
    Embed,
    EndRequest,
    Frame,
    Generate,
    GetStats,
    Hello,
    Leave,
    Load,
    Rank,
    Render,
    Restore,
    Score,
    Sealed,
    Tokenize,
    Unload,
    Welcome,
    WireError,
    encode,
    sealed_frames,
)
from hearth.backends.errors import (
    HostUnreachable,
    InternalError,
    Interrupted,
    InvalidParameter,
    NoHost,
    from_info,
    to_info,
)
from hearth.backends.machine.local_socket import HostPlace, connect
from hearth.backends.machine.logs import open_log
from hearth.backends.machine.mailbox import Mailbox

__all__ = ["HostClient", "HostPlace"]

_START_TIMEOUT_S = 15.0
_GREET_TIMEOUT_S = 15.0
"""A working host greets in milliseconds; after this many seconds it is considered stuck."""
_LARGE_TOKENS = 256 << 10
"""A call of more tokens, by the upper bound in `Cost`, is sent only after the host has confirmed
that it may fit.
"""
_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 0.1
_A = TypeVar("_A")


class HostClient:
    """One attached front end, created by `HostClient.attach`."""

    def __init__(
        self, place: HostPlace, frames: AsyncIterator[list[Sealed]], writer: asyncio.StreamWriter
    ) -> None:
        self._place = place
        self._frames = frames
        self._writer = writer
        self._name = f"client-{secrets.token_hex(4)}"
        """The session of calls that name none."""
        self._idents = itertools.count(1)
        self._answers: dict[int, Mailbox[Answer]] = {}
        self.lost = False
        """The connection is closed for good, and every call fails."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def attach(
        cls,
        place: HostPlace,
        *,
        start: bool = True,
        host_idle_s: float = 10.0,
        limits: HostLimits | None = None,
    ) -> AsyncIterator[HostClient]:
        """Attach to the host of `place`.

        Args:
            start: start a host if none is running; if false, `NoHost` is raised instead.
            host_idle_s: idle seconds without front ends after which a host started here exits.
            limits: how much the host may have loaded from now on. They apply to all front ends and
                replace earlier limits. None: keep the present limits.

        Raises:
            HostUnreachable: the host does not start or answer, or it has another version and is
                busy.
            NoHost: no host is running, and `start` is false.
        """
        client = await _attach(place, start, host_idle_s, limits)
        client._task = asyncio.create_task(client._read())
        try:
            yield client
        finally:
            client._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await client._task
            client._writer.close()
            with contextlib.suppress(OSError):
                await client._writer.wait_closed()

    def backend(self, spec: ModelSpec, session: str = "") -> HostBackend:
        """The model of `spec`, loaded when first used; a relative path is relative to the working
        directory of this process, not of the host.

        Args:
            session: the session of calls that name none.
        """
        return HostBackend(self, _absolute(spec), session)

    async def stats(self) -> HostStats:
        """Statistics of the host and its workers."""
        return await self.ask(GetStats())

    async def unload(self, model: str | None = None) -> int:
        """Unload the model with this path or name, or all models if None; returns how many were
        unloaded.
        """
        return int((await self.ask(Unload(model))).text)

    async def end_request(self, pid: int, request: int) -> bool:
        """End the call with this `RequestStats.id` in the worker with process id `pid` as
        cancelled, whichever client made it; False if it is already over.
        """
        return (await self.ask(EndRequest(pid, request))).text != "0"

    async def clear_cache(self, model: ModelSpec, *, load: bool = True) -> EngineStats:
        """Forget the kept prefixes of `model`; returns the statistics afterwards.

        Args:
            load: load the model if it is not loaded; if false, its settings do not matter.

        Raises:
            ModelNotFound: the model is not loaded, and `load` is false.
        """
        return await self.ask(ClearCache(load), _absolute(model))

    async def ask(self, call: Call[_A], model: ModelSpec | None = None, session: str = "") -> _A:
        """The answer to a call that has a single one.

        Raises:
            Interrupted: another program ended the call.
            HearthError: the error that the host or the worker reports.
        """
        async with contextlib.aclosing(self.stream(call, model, session)) as answers:
            async for answer in answers:
                if isinstance(answer, Failed):
                    raise from_info(answer.error)
                if isinstance(answer, Finished) and not isinstance(call, Restore):
                    raise Interrupted("The request was interrupted.", "Send it again.")
                return cast(_A, answer)
        raise InternalError("A call got no answer.")

    async def stream(
        self, call: Call[object], model: ModelSpec | None = None, session: str = ""
    ) -> AsyncGenerator[Answer, None]:
        """The answers to `call`, up to the last one; closing the iterator early cancels the call.

        Args:
            session: the session of the call; empty: this front end.

        Raises:
            InvalidParameter: the call cannot be sent, because it is too large or its text is not
                valid Unicode.
        """
        wanted = call.cost()
        if wanted is not None and wanted.least and wanted.prompt_tokens > _LARGE_TOKENS:
            async for answer in self.stream(Check(wanted), model):
                if isinstance(answer, Failed):
                    yield answer
                    return
        ident = next(self._idents)
        try:
            question = encode(Frame(ident, call, model, session or self._name, wanted))
        except WireError as error:
            raise InvalidParameter(
                "request", f"The request cannot be sent: {error}.", "Shorten or correct it."
            ) from error
        mailbox = self._answers[ident] = Mailbox()
        over = False
        try:
            if self.lost:
                mailbox.put(self._lost_answer())
            else:
                self._writer.write(question)
                del question  # It may be megabytes.
            while True:
                for answer in await mailbox.take():
                    over = type(answer) not in PARTS
                    yield answer
                    if over:
                        return
        finally:
            del self._answers[ident]
            if not over and not self.lost:
                self._writer.write(encode(Frame(ident, Cancel())))

    async def _read(self) -> None:
        try:
            async for frames in self._frames:
                for sealed in frames:
                    if (mailbox := self._answers.get(sealed.id)) is not None:
                        mailbox.put(sealed.open())  # type: ignore[arg-type]
        except (OSError, WireError):
            pass  # The connection is lost either way; every open stream is ended below.
        finally:
            self.lost = True
            for mailbox in self._answers.values():
                mailbox.put(self._lost_answer())

    def _lost_answer(self) -> Failed:
        error = HostUnreachable(
            "The connection to Hearth's host process was lost.",
            "Retry the request: the host is started again. Its log is"
            f" {self._place.log_dir / 'host.log'}.",
        )
        return Failed(to_info(error))


class HostBackend:
    """Implements `contract.backend.Backend`, which has the docstrings, over the host."""

    def __init__(self, client: HostClient, spec: ModelSpec, session: str = "") -> None:
        self._client = client
        self._session = session
        self.spec = spec

    async def info(self) -> ModelInfo:
        return await self._ask(Load())

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        # Returned directly: a generator around the answers would cost time for every token.
        session = request.session or self._session
        answers = self._client.stream(Generate(request), self.spec, session)
        return cast("AsyncGenerator[Event, None]", answers)

    async def tokenize(
        self, text: str, *, special: bool = False, add_special: bool = False
    ) -> list[int]:
        return list((await self._ask(Tokenize(text, special, add_special))).ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        return (await self._ask(Detokenize(tuple(ids)))).text

    async def render(self, request: Request) -> Prompt:
        return await self._ask(Render(request), request.session)

    async def restore(self, request: Request) -> None:
        await self._ask(Restore(request), request.session)

    async def score(self, ids: Sequence[int], *, top: int = 0, session: str = "") -> Scores:
        return await self._ask(Score(tuple(ids), top), session)

    async def embed(
        self,
        texts: Sequence[str | tuple[int, ...]],
        *,
        pooling: Pooling = "model",
        session: str = "",
        truncate: bool = False,
    ) -> Embeddings:
        return await self._ask(Embed(tuple(texts), pooling, truncate), session)

    async def rank(self, query: str, texts: Sequence[str], *, session: str = "") -> Ranks:
        return await self._ask(Rank(query, tuple(texts)), session)

    async def _ask(self, call: Call[_A], session: str = "") -> _A:
        return await self._client.ask(call, self.spec, session or self._session)


def _absolute(spec: ModelSpec) -> ModelSpec:
    """`spec` with an absolute path, because the host has another working directory."""
    return replace(spec, path=os.path.abspath(spec.path))


async def _attach(
    place: HostPlace, start: bool, host_idle_s: float, limits: HostLimits | None
) -> HostClient:
    place.prepare()
    until = time.monotonic() + _START_TIMEOUT_S
    wait_s = _FIRST_WAIT_S
    host: subprocess.Popen[bytes] | None = None
    while True:
        absent: Exception | None = None
        try:
            async with asyncio.timeout(_GREET_TIMEOUT_S):
                client = await _greet(place, limits)
            if client is not None:
                return client
        except TimeoutError as error:
            raise HostUnreachable(
                f"Hearth's host process does not answer on {place.address}.",
                "End it, and the next command starts another."
                f" Its log is {place.log_dir / 'host.log'}.",
            ) from error
        except (OSError, WireError) as error:
            absent = error
        if not start:
            raise NoHost(
                "No Hearth host is running.", "Any `hearth run` or `hearth chat` starts one."
            ) from absent
        if host is None or host.poll() is not None:
            host = _start_host(place, host_idle_s)
        if time.monotonic() > until:
            raise HostUnreachable(
                f"The host process did not answer within {_START_TIMEOUT_S:.0f} s.",
                f"Its log is {place.log_dir / 'host.log'}.",
            )
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


async def _greet(place: HostPlace, limits: HostLimits | None) -> HostClient | None:
    """A client of the running host; None if the host has another version and is exiting now."""
    reader, writer = await connect(place)
    frames = sealed_frames(reader)
    kept = False
    try:
        writer.write(encode(Frame(0, Hello(hearth_version(), limits))))
        welcome = await _next(frames)
        if not isinstance(welcome, Welcome):
            raise WireError("the host did not greet")
        if welcome.version == hearth_version():
            kept = True
            return HostClient(place, frames, writer)
        writer.write(encode(Frame(0, Leave())))
        answer = await _next(frames)
    finally:
        if not kept:
            writer.close()
    if isinstance(answer, Failed):
        raise HostUnreachable(
            f"A host of Hearth {welcome.version} is busy; this is Hearth {hearth_version()}.",
            "Wait until it is idle, or end it.",
            pid=welcome.pid,
        )
    return None


async def _next(frames: AsyncIterator[list[Sealed]]) -> object:
    """The body of the next of `frames`; None at their end. Raises `WireError` if further frames
    arrive with it, because they answer no call.
    """
    came: list[Sealed] = await anext(frames, [])
    if len(came) > 1:
        raise WireError("the host sends what it was not asked for")
    return came[0].open() if came else None


def _start_host(place: HostPlace, idle_s: float) -> subprocess.Popen[bytes]:
    """Start the host in its own session, so that closing the terminal does not end it.

    The host runs in `runtime_dir`, so that it does not keep the current folder in use, and imports
    nothing from the current folder (-P).
    """
    command = [sys.executable, "-P", "-m", "hearth.backends.host"]
    command += ["--runtime", str(place.runtime_dir.absolute())]
    command += ["--logs", str(place.log_dir.absolute())]
    command += ["--cache", str(place.cache_dir.absolute()), "--idle", str(idle_s)]
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    with open_log(place.log_dir / "host.log") as log_file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            cwd=place.runtime_dir,
            start_new_session=True,
            creationflags=flags,
        )
