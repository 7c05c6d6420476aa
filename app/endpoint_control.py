"""Turns the terminal app's own endpoint on and off: `hearth serve` in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hearth.app.settings import Settings
from hearth.app.settings_keys import ALL, LOADING
from hearth.backends.errors import HearthError

State = Literal["off", "starting", "on", "stopping"]

_KEPT_LINES: Final = 40
_END_GRACE_S: Final = 5.0
"""How long an endpoint may take to end after it was told to end at once."""
_ERROR: Final = "error: "


class EndpointFailed(HearthError):
    """The endpoint could not be started, or ended by itself."""

    code = "endpoint_failed"


@dataclass(frozen=True, slots=True)
class Launch:
    """How the child is started.

    Attributes:
        arguments: the arguments of `hearth`.
        environ: its complete environment.
        program: runs `hearth` with these arguments and ends with this process; its first argument
            is the id of this process.
    """

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "hearth.app.endpoint_child")


def launch(
    settings: Settings, host: str, port: int, *, key: bool, environ: Mapping[str, str] | None = None
) -> Launch:
    """How to start `hearth serve` so that the flags of the app apply to it as well.

    Args:
        key: require the stored key of clients; a key in HEARTH_API_KEY is required in any case.
        environ: default: the environment of this process.
    """
    variables = dict(os.environ if environ is None else environ)
    for declared in (*LOADING, ALL["backend"]):
        if declared.name in settings.flags:
            variables[declared.variable] = str(declared.shown(settings.flags[declared.name].value))
    arguments = ["--offline"] if settings.offline else []
    arguments += ["serve", "--host", host, "--port", str(port)]
    if key and not variables.get("HEARTH_API_KEY"):
        arguments.append("--generate-key")
    return Launch(tuple(arguments), variables)


class EndpointControl:
    """One endpoint, which ends when this process does, however that ends.

    Args:
        on_change: called in the event loop whenever an attribute below has changed.

    Attributes:
        state: the current state.
        url: where it listens; empty unless it is on.
        error: why it is off; None if the user turned it off.
        says: the last line that it wrote to stderr.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.state: State = "off"
        self.url = ""
        self.error: EndpointFailed | None = None
        self.says = ""
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    async def start(self, how: Launch) -> None:
        """Turn it on; returns when it is on. Does nothing unless it is off.

        Raises:
            EndpointFailed: the port is in use, or `hearth serve` reports another error.
        """
        if self.state != "off":
            return
        self._lines.clear()
        self.error, self.says = None, ""
        self._become("starting")
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(*how.program, str(os.getpid()), *how.arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(how.environ),
                start_new_session=True,  # Ctrl+C in the terminal is meant for the app.
            )
        except OSError as error:
            self.error = EndpointFailed(f"hearth serve could not be started: {error}")
            self._become("off")
            raise self.error from error
        assert process.stdout is not None
        self._watching = asyncio.create_task(self._watch(process))
        url = (await process.stdout.readline()).decode(errors="replace").strip()
        if url and not self._was_told_to_end:
            self.url = url
            self._become("on")
            return
        await asyncio.shield(self._watching)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Turn it off when the running requests are done, after half a minute at most. A second
        call turns it off at once.
        """
        if self._process is None or self._process.returncode is not None:
            return
        if not self._was_told_to_end:
            self._become("stopping")
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def close(self) -> None:
        """Turn it off at once; returns when it has ended."""
        if self._process is None or self._watching is None:
            return
        self.stop()
        if self._process.stdin is not None:
            self._process.stdin.close()  # This makes it end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_GRACE_S):
                await asyncio.shield(self._watching)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._watching

    @property
    def _was_told_to_end(self) -> bool:
        return self.state == "stopping"

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Read the child's stderr until the child has ended."""
        assert process.stderr is not None
        async for line in process.stderr:
            self.says = line.decode(errors="replace").rstrip("\n")
            self._lines.append(self.says)
            self._on_change()
        code = await process.wait()
        if not self._was_told_to_end:
            self.error = _failure(list(self._lines), code)
        self.url = ""
        self._become("off")

    def _become(self, state: State) -> None:
        self.state = state
        self._on_change()


def _failure(lines: list[str], code: int) -> EndpointFailed:
    """The error in the last lines of a `hearth serve`, with its hint."""
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith(_ERROR):
            return EndpointFailed(lines[at].removeprefix(_ERROR), " ".join(lines[at + 1 :]))
    return EndpointFailed(
        " ".join(lines[-1:]) or f"hearth serve ended with exit code {code}.",
        "Its log is server.log; `hearth doctor` shows its folder.",
    )
