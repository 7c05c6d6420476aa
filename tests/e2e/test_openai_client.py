"""The real `openai` client against a real `hearth serve` with the bundled model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import openai
import psutil
import pytest

from hearth.app.chosen import with_settings
from hearth.app.library.local import Library
from hearth.app.paths import find_paths
from hearth.app.settings import load_settings
from hearth.backends.contract.loaded import EngineStats
from hearth.backends.host.client import HostClient
from hosts import gone

QUESTION = [{"role": "user", "content": "What is a token?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
CANCELLED_CALLS = 200


class Served:
    """A `hearth serve` of its own, with a host of its own."""

    def __init__(self, home: str) -> None:
        self.environ = {**os.environ, "HEARTH_HOME": home}
        command = [sys.executable, "-m", "hearth.app.cli.main", "serve", "guide", "--port", "0"]
        self.process = subprocess.Popen(
            command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.place = find_paths(self.environ).host_place()

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    async def engine(self) -> EngineStats:
        async with HostClient.attach(self.place, start=False) as host:
            (worker,) = (await host.stats()).workers
            assert worker.engine is not None
            return worker.engine

    async def quiet_engine(self) -> EngineStats:
        """The engine's figures once nothing runs and nothing waits."""
        async with asyncio.timeout(20):
            while True:
                engine = await self.engine()
                if not engine.running and not engine.waiting:
                    return engine
                await asyncio.sleep(0.01)

    async def forgetful_engine(self) -> EngineStats:
        """The figures of the quiet engine after it has forgotten every kept prefix."""
        await self.quiet_engine()
        paths = find_paths(self.environ)
        settings = load_settings(paths.settings_file, self.environ)
        guide = with_settings(Library(paths.models).resolve("guide"), settings)
        async with HostClient.attach(self.place, start=False) as host:
            return await host.clear_cache(guide.spec)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        served = Served(home)
        assert served.url, served.process.communicate()[1]
        host = psutil.Process(asyncio.run(_host_pid(served)))
        family = [host, *host.children(recursive=True)]
        yield served
        served.process.terminate()
        _, said = served.process.communicate(timeout=60)
        assert served.process.returncode == 0 and "Traceback" not in said
        with contextlib.suppress(psutil.NoSuchProcess):
            host.terminate()
        gone(family)


async def _host_pid(served: Served) -> int:
    async with HostClient.attach(served.place, start=False) as host:
        return (await host.stats()).pid


def test_chat(served) -> None:
    answer = served.client().chat.completions.create(
        model="guide", messages=QUESTION, temperature=0
    )
    choice = answer.choices[0]
    assert "token" in choice.message.content and choice.finish_reason == "stop"
    assert answer.usage.completion_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_and_whole_agree(served) -> None:
    client = served.client()
    given = {"model": "guide", "messages": QUESTION, "temperature": 0}
    whole = client.chat.completions.create(**given)
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        **given, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert reasons == ["stop"]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_the_same_chat_as_hearth_run(served) -> None:
    answer = served.client().chat.completions.create(
        model="guide", messages=QUESTION, temperature=0
    )
    command = [sys.executable, "-m", "hearth.app.cli.main", "run", "guide", "What is a token?"]
    done = subprocess.run(
        [*command, "--temperature", "0"],
        env=served.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == answer.choices[0].message.content.strip()
    listed = subprocess.run(
        [*command[:3], "ps"], env=served.environ, capture_output=True, text=True, timeout=60
    )
    assert len(listed.stdout.splitlines()) == 2, "one worker serves both"


def test_several_choices_limits_seeds_and_log_probabilities(served) -> None:
    client = served.client()
    given = {"model": "guide", "messages": STORY, "temperature": 1, "seed": 7}
    several = client.chat.completions.create(**given, n=3, max_tokens=12)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in several.choices} <= {"stop", "length"}
    again = client.chat.completions.create(**given, n=3, max_tokens=12)
    texts = [choice.message.content for choice in several.choices]
    assert texts == [choice.message.content for choice in again.choices]
    scored = client.chat.completions.create(**given, max_tokens=5, logprobs=True, top_logprobs=2)
    tokens = scored.choices[0].logprobs.content
    assert len(tokens) == 5 and all(len(token.top_logprobs) == 2 for token in tokens)
    assert "".join(token.token for token in tokens) == scored.choices[0].message.content


def test_completions(served) -> None:
    client = served.client()
    answer = client.completions.create(
        model="guide", prompt=["Once upon a", "A token is"], max_tokens=6, temperature=0, echo=True
    )
    assert [choice.text[:4] for choice in answer.choices] == ["Once", "A to"]
    assert answer.usage.completion_tokens <= 12
    pieces = client.completions.create(
        model="guide", prompt="Once upon a", max_tokens=6, temperature=0, stream=True
    )
    text = "".join(choice.text for chunk in pieces for choice in chunk.choices)
    assert "Once upon a" + text == answer.choices[0].text


def test_models(served) -> None:
    client = served.client()
    names = {model.id for model in client.models.list()}
    assert "guide" in names
    assert "guide-draft" not in names
    assert client.models.retrieve("guide-draft").id == "guide-draft"
    assert client.models.retrieve("guide").id == "guide"


def test_errors_are_the_clients_own(served) -> None:
    client = served.client()
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-4", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        create(model="guide", messages=QUESTION, temperature=11)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="guide", messages=[{"role": "user", "content": "x " * 3000}])
    assert (
        long.value.code == "context_length_exceeded"
        and "maximum context length is 2048 tokens" in long.value.message
    )
    with pytest.raises(openai.BadRequestError) as stranger:
        client.completions.create(model="guide", prompt=[10**6])
    assert stranger.value.param == "prompt"


def test_eight_streams_side_by_side(served) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="guide", messages=STORY, temperature=0, max_tokens=60, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def eight() -> list[str]:
        async with served.async_client() as client:
            return await asyncio.gather(*(ask(client) for _ in range(8)))

    assert all(asyncio.run(eight()))


def test_calls_cancelled_at_random_moments_leave_nothing_behind(served) -> None:
    """Moments are counted in chunks received, so the test does not depend on the clock."""
    moments = random.Random(8)

    async def cancelled(client: openai.AsyncOpenAI, chunks: int) -> None:
        call = client.chat.completions.create(
            model="guide", messages=STORY, temperature=1, max_tokens=400, stream=True
        )
        if chunks < 0:  # Before the answer begins.
            task = asyncio.ensure_future(call)
            for _ in range(-chunks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        stream = await call
        seen = 0
        async for _ in stream:
            seen += 1
            if seen > chunks:
                break
        await stream.close()

    async def storm() -> tuple[EngineStats, EngineStats]:
        async with served.async_client() as client:
            before = await served.forgetful_engine()
            turn = asyncio.Semaphore(8)

            async def one() -> None:
                async with turn:
                    await cancelled(client, moments.randint(-40, 40))

            await asyncio.gather(*(one() for _ in range(CANCELLED_CALLS)))
            answer = await client.chat.completions.create(
                model="guide", messages=QUESTION, temperature=0
            )
            assert "token" in answer.choices[0].message.content
            return before, await served.forgetful_engine()

    before, after = asyncio.run(storm())
    for figures in (before, after):
        assert (figures.running, figures.waiting) == (0, 0)
        assert (figures.live_tokens, figures.kept_tokens, figures.kept_prefixes) == (0, 0, 0)
