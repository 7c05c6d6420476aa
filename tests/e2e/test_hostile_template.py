"""A model with a hostile chat template: chats fail by name and in time, streams go on."""

import asyncio
import time
from dataclasses import replace

import pytest

from async_tests import in_loop
from gguf_builder import TEMPLATE, tiny_llama
from hearth.backends.contract.events import Failed, Finished, Token
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hostile_templates import HOSTILE
from hosts import attached, collect

SOME = ("class of a tuple", "nested loops", "syntax error")
"""One that the sandbox refuses, one that takes too long, and one that cannot be compiled."""
LIMIT_S = 1.5
SETTINGS = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)
STREAM = Request(
    text="the", sampling=SamplingParams(temperature=0.0), max_tokens=4000, ignore_eos=True
)
CHAT = Request(messages=(Message("user", "hi"),), max_tokens=4)


async def chat_beside_a_stream(host, spec):
    """Seconds that a chat with the hostile template took, while another stream went on."""
    backend = host.backend(spec)
    await backend.info()
    told = asyncio.Event()
    during = 0

    async def stream():
        nonlocal during
        async for event in backend.generate(STREAM):
            if isinstance(event, Token):
                during += not told.is_set()
        return event

    streaming = asyncio.create_task(stream())
    began = time.monotonic()
    _, _, last = await collect(backend.generate(CHAT))
    took_s = time.monotonic() - began
    assert not streaming.done(), "the stream ended first"
    told.set()
    assert isinstance(last, Failed) and last.error.code == "template_error", last
    assert during > 0, "nobody was served meanwhile"
    assert isinstance(await streaming, Finished)
    return took_s


@pytest.mark.parametrize("name", SOME)
@in_loop
async def test_a_hostile_template_fails_its_chat_alone(name, tmp_path, place):
    path = tiny_llama(tmp_path / "hostile.gguf", template=HOSTILE[name], context=8192)
    async with attached(place) as host:
        await chat_beside_a_stream(host, ModelSpec(str(path), settings=SETTINGS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@in_loop
async def test_every_hostile_template_fails_its_chat_alone(tmp_path, place):
    path = tiny_llama(tmp_path / "tiny.gguf", context=8192)
    took_s = {}
    async with attached(place) as host:
        for name, template in HOSTILE.items():
            spec = ModelSpec(str(path), settings=replace(SETTINGS, chat_template=template))
            took_s[name] = await chat_beside_a_stream(host, spec)
    assert len(took_s) > 40
    assert {name: s for name, s in took_s.items() if s >= LIMIT_S} == {}


@in_loop
async def test_the_settings_can_replace_a_hostile_template(tmp_path, place):
    path = tiny_llama(tmp_path / "hostile.gguf", template=HOSTILE["own exception"])
    settings = ModelSettings(chat_template=TEMPLATE, threads=1)
    async with attached(place) as host:
        backend = host.backend(ModelSpec(str(path), settings=settings))
        assert isinstance((await collect(backend.generate(CHAT)))[2], Finished)
