"""Switches an endpoint of the terminal app's own on and off: `hearth serve` in a child process."""

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
"""How long an endpoint that was told twice to end may take."""
_ERROR: Final = "error: "


class EndpointFailed(HearthError):
    """The endpoint could not be started, or ended by itself."""

    code = "endpoint_failed"


@dataclass(frozen=True, slots=True)
class Launch:
    """What the child is started with.

    Attributes:
        arguments: of `hearth`.
        environ: its whole environment.
        program: what runs them and ends with this process; gets its id first.
    """

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "hearth.app.endpoint_child")


def launch(
    settings: Settings, host: str, port: int, *, key: bool, environ: Mapping[str, str] | None = None
) -> Launch:
    """How `hearth serve` is started, so that what was typed when the app was started holds for it
    as well.

    Args:
        key: clients are asked for the kept key; one in HEARTH_API_KEY holds in any case.
        environ: by default that of this process.
    """
    found = dict(os.environ if environ is None else environ)
    for declared in (*LOADING, ALL["backend"]):
        if declared.name in settings.flags:
            found[declared.variable] = str(declared.shown(settings.flags[declared.name].value))
    arguments = ["--offline"] if settings.offline else []
    arguments += ["serve", "--host", host, "--port", str(port)]
    if key and not found.get("HEARTH_API_KEY"):
        arguments.append("--generate-key")
    return Launch(tuple(arguments), found)


class EndpointControl:
    """One endpoint, which ends when this process does, however that ends.

    Args:
        on_change: called in the event loop whenever something below has changed.

    Attributes:
        state: what it does now.
        url: where it is asked; empty while it is not on.
        error: why it is off; None if the user turned it off.
        says: the last line that it had for a person.
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
        """Switch it on; returns when it is on. Does nothing unless it is off.

        Raises:
            EndpointFailed: the port is in use, or whatever else `hearth serve` says.
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
                start_new_session=True,  # Ctrl+C in the terminal is for the app.
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
        """Switch it off when the requests under way are done, half a minute at most; told again,
        at once.
        """
        if self._process is None or self._process.returncode is not None:
            return
        if not self._was_told_to_end:
            self._become("stopping")
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def close(self) -> None:
        """Switch it off at once; returns when it is gone."""
        if self._process is None or self._watching is None:
            return
        self.stop()
        if self._process.stdin is not None:
            self._process.stdin.close()  # Which makes it end.
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
        """Read what it says to people until it is gone."""
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
    """What the last words of a `hearth serve` mean: its error, and what to do about it."""
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith(_ERROR):
            return EndpointFailed(lines[at].removeprefix(_ERROR), " ".join(lines[at + 1 :]))
    return EndpointFailed(
        " ".join(lines[-1:]) or f"hearth serve ended with exit code {code}.",
        "Its log is server.log; `hearth doctor` shows its folder.",
    )
