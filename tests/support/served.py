"""A real `hearth serve` with its own host, and real clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import anthropic
import httpx2
import openai
import psutil

from commands import HEARTH
from hearth.app.chosen import with_settings
from hearth.app.library.local import Library
from hearth.app.paths import find_paths
from hearth.app.settings import load_settings
from hearth.backends.contract.loaded import EngineStats, WorkerStats
from hearth.backends.contract.models import ModelSpec
from hearth.backends.host.client import HostClient
from hosts import gone

_TIMEOUT_S = 60.0


class Served:
    """One running server.

    Attributes:
        url: of the OpenAI-style API.
        root: URL of the other APIs.
        family: the host and its first workers.
    """

    def __init__(self, home: Path, settings: Mapping[str, str], options: Sequence[str]) -> None:
        self.environ = {**os.environ, "HEARTH_HOME": str(home), **settings}
        self.environ.pop("HEARTH_API_KEY", None)
        self.process = subprocess.Popen(
            [*HEARTH, "serve", "guide", "--port", "0", *options],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.communicate()[1]
        self.root = self.url.removesuffix("/v1")
        self.paths = find_paths(self.environ)
        self.place = self.paths.host_place()
        self.host = psutil.Process(asyncio.run(self._host_pid()))
        self.family = [self.host, *self.host.children(recursive=True)]

    @property
    def port(self) -> int:
        return int(self.root.rpartition(":")[2])

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=_TIMEOUT_S)

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=self.root, api_key="none", max_retries=0, timeout=_TIMEOUT_S
        )

    @cached_property
    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.root, timeout=_TIMEOUT_S)

    def spec(self, model: str) -> ModelSpec:
        """The spec with which the server requests `model`."""
        settings = load_settings(self.paths.settings_file, self.environ)
        return with_settings(Library(self.paths.models).resolve(model), settings).spec

    async def worker(self, model: str) -> WorkerStats:
        """The host's statistics of the loaded `model`."""
        async with HostClient.attach(self.place, start=False) as host:
            [found] = [each for each in (await host.stats()).workers if each.name == model]
            return found

    async def quiet_engine(self, model: str) -> EngineStats:
        """The engine's figures once no request runs or waits."""
        async with asyncio.timeout(30):
            while True:
                worker = await self.worker(model)
                engine = worker.engine
                if engine is not None and not (worker.running or worker.waiting):
                    return engine
                await asyncio.sleep(0.01)

    async def _host_pid(self) -> int:
        async with HostClient.attach(self.place, start=False) as host:
            return (await host.stats()).pid


@contextmanager
def served(
    settings: Mapping[str, str] | None = None,
    models: Mapping[str, Path] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Served]:
    """A server in its own home, with `guide` loaded. At exit it must end without an error, and all
    its processes must be gone.

    Args:
        settings: `HEARTH_*` variables.
        models: files and folders of the library, by their names in requests.
        options: of `hearth serve`.
    """
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        library = find_paths({"HEARTH_HOME": home}).models
        library.mkdir(parents=True)
        for name, path in (models or {}).items():
            (library / (name if path.is_dir() else f"{name}.gguf")).symlink_to(path)
        one = Served(Path(home), settings or {}, options)
        try:
            yield one
        finally:
            family = [*one.family, *one.host.children(recursive=True)]
            one.process.terminate()
            _, said = one.process.communicate(timeout=60)
            with contextlib.suppress(psutil.NoSuchProcess):
                one.host.terminate()
            gone(family)
        assert one.process.returncode == 0 and "Traceback" not in said, said
