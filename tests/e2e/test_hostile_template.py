"""A model with a hostile chat template: chats fail by name and in time, streams go on."""

import asyncio
import time

import pytest

from gguf_builder import TEMPLATE, tiny_llama
from hearth.backends.contract import (
    Failed,
    Finished,
    Message,
    ModelSettings,
    ModelSpec,
    Request,
    SamplingParams,
    Token,
)
from hosts import attached, collect

HOSTILE = {
    "walk": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "huge": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "refusal": "{{ raise_exception('no') }}",
    "syntax": "{% for %}",
}
SETTINGS = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)
STREAM = Request(
    text="the", sampling=SamplingParams(temperature=0.0), max_tokens=4000, ignore_eos=True
)
CHAT = Request(messages=(Message("user", "hi"),), max_tokens=4)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_fails_its_chat_alone(name, tmp_path, place):
    path = tiny_llama(tmp_path / "hostile.gguf", template=HOSTILE[name], context=8192)
    spec = ModelSpec(str(path), settings=SETTINGS)

    async def main():
        async with attached(place) as host:
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
            told.set()
            assert isinstance(last, Failed) and last.error.code == "template_error", last
            assert during > 0, "nobody was served meanwhile"
            assert isinstance(await streaming, Finished)
            return took_s

    assert asyncio.run(main()) < 1.5


def test_the_settings_can_replace_a_hostile_template(tmp_path, place):
    path = tiny_llama(tmp_path / "hostile.gguf", template=HOSTILE["refusal"])
    settings = ModelSettings(chat_template=TEMPLATE, threads=1)

    async def main():
        async with attached(place) as host:
            backend = host.backend(ModelSpec(str(path), settings=settings))
            assert isinstance((await collect(backend.generate(CHAT)))[2], Finished)

    asyncio.run(main())
