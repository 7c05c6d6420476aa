"""A chat goes on after every process was killed, without computing again what it had computed."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from async_tests import in_loop
from hearth.backends.contract.events import Finished, Started, Token
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import KvType, ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.host.client import HostClient, HostPlace
from hosts import attached, family, gone, worker_when

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL"),
]
QUESTIONS = ("How do I start a chat with a model?", "And which models can I use?")
SYSTEM = Message("system", "Answer the questions about Hearth. " * 12)


async def ask(client: HostClient, spec: ModelSpec, turns: list[Message]) -> tuple[Started, int]:
    """Ask for an answer, which `turns` has afterwards; how it began, and all tokens in the end."""
    request = Request(
        messages=tuple(turns),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=60,
        session="one chat",
    )
    started, text = None, ""
    async for event in client.backend(spec, "one chat").generate(request):
        if isinstance(event, Started):
            started = event
        elif isinstance(event, Token):
            text += event.text
        elif isinstance(event, Finished):
            assert started is not None
            turns.append(Message("assistant", text))
            return started, event.usage.prompt_tokens + event.usage.completion_tokens
    raise AssertionError("no answer")


async def kill_9(place: HostPlace, client: HostClient) -> None:
    killed = family((await client.stats()).pid)
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    gone(killed)


@pytest.mark.parametrize("backend", ["llamacpp", "native"])
@in_loop
async def test_a_chat_goes_on_after_kill_9(place: HostPlace, guide: Path, backend: str) -> None:
    settings = ModelSettings(context=1024, max_sessions=2)
    spec = ModelSpec(str(guide), "guide", backend, settings)
    turns = [SYSTEM, Message("user", QUESTIONS[0])]
    async with HostClient.attach(place, host_idle_s=30) as client:
        started, total = await ask(client, spec, turns)
        assert started.cached_tokens == 0
        # The last token is drawn and not computed; each has some bytes beside its keys and values.
        written = await worker_when(
            client, lambda worker: worker.engine.disk_tokens >= total - 1, timeout_s=5.0
        )
        per_token = written.engine.disk_bytes / written.engine.disk_tokens
        assert per_token <= 1.2 * written.engine.kv_bytes_per_token
        await kill_9(place, client)
    turns.append(Message("user", QUESTIONS[1]))
    async with attached(place) as client:
        started, total_2 = await ask(client, spec, turns)
        assert total - 1 <= started.cached_tokens <= total
        assert started.cached_tokens >= 0.98 * total
        stats = await worker_when(client, lambda worker: worker.engine.disk_tokens >= total_2 - 1)
        assert stats.engine.disk_read_tokens == started.cached_tokens
        assert stats.engine.disk_written_bytes <= 1.2 * stats.engine.kv_bytes_per_token * (
            total_2 - total + 1
        )


@pytest.mark.parametrize("backend", ["llamacpp", "native"])
@in_loop
async def test_other_weights_or_another_kv_type_find_nothing(
    place: HostPlace, guide: Path, tmp_path: Path, backend: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(guide.read_bytes())
    settings = ModelSettings(context=1024, max_sessions=2)
    spec = ModelSpec(str(path), "model", backend, settings)
    kv_type: KvType = "f32"
    turns = [SYSTEM, Message("user", QUESTIONS[0])]
    async with attached(place) as client:
        _, total = await ask(client, spec, list(turns))
        await worker_when(client, lambda worker: worker.engine.disk_tokens >= total - 1)
        await client.unload()
        other = replace(spec, settings=replace(settings, kv_type=kv_type))
        started, _ = await ask(client, other, list(turns))
        assert started.cached_tokens == 0
        await client.unload()
        data = bytearray(path.read_bytes())
        data[-100] ^= 1  # In the last weights.
        path.write_bytes(data)
        started, _ = await ask(client, spec, list(turns))
        assert started.cached_tokens == 0
        await client.unload()
        path.write_bytes(guide.read_bytes())
        started, _ = await ask(client, spec, list(turns))
        assert started.cached_tokens == started.prompt_tokens - 1
