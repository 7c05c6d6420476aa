"""A front end that does not read: its streams end, others go on, and memory stays bounded."""

import asyncio
import io

import pytest

from async_tests import in_loop
from hearth.backends.contract.events import Failed, Finished, Token
from hearth.backends.contract.loaded import HostStats
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.wire import Frame, Generate, GetStats, encode, read_frame
from hearth.backends.host import host as host_module
from hearth.backends.host.host import Client

SPEC = ModelSpec("x")


class Talker:
    """Stands for the host and its supervisor: every call gets tokens for ever."""

    def __init__(self):
        self.supervisor = self
        self.tokens = 0
        self.ended = asyncio.Event()

    async def call(self, spec, call, stream, session, cost):
        while not stream.ended.done():
            stream.put(Token("x" * 1000))
            self.tokens += 1
            await asyncio.sleep(0)
        self.ended.set()

    async def stats(self):
        return HostStats(1, "0", 0.0, 1)


class Deaf:
    """A writer whose other end reads only when it is told to."""

    def __init__(self):
        self.data = b""
        self.reading = asyncio.Event()
        self.written = asyncio.Event()
        self.transport = self

    def get_write_buffer_size(self):
        return 0 if self.reading.is_set() else len(self.data)

    def write(self, data):
        self.data += data
        self.written.set()

    async def until(self, kind):
        """Wait until a frame of this kind is written."""
        while kind not in self.data:
            self.written.clear()
            await self.written.wait()

    async def drain(self):
        await self.reading.wait()

    def is_closing(self):
        return False

    def close(self):
        pass

    def frames(self):
        data = self.data
        while data:
            end = 12 + int.from_bytes(data[:4], "big")
            yield read_frame(io.BytesIO(data[:end]))
            data = data[end:]


@pytest.mark.parametrize("most", [20_000, 200_000])
@in_loop
async def test_a_stream_that_is_not_read_is_ended_with_an_error(monkeypatch, most):
    monkeypatch.setattr(host_module, "_MOST_UNSENT_BYTES", most)
    host, writer, reader = Talker(), Deaf(), asyncio.StreamReader()
    serving = asyncio.create_task(Client(host, reader, writer).serve())
    reader.feed_data(encode(Frame(1, Generate(Request(text="a")), SPEC)))
    await asyncio.wait_for(host.ended.wait(), 30)
    assert host.tokens * 1000 < most + 5000
    writer.reading.set()
    reader.feed_data(encode(Frame(2, GetStats())))
    await writer.until(b"HostStats")
    frames = list(writer.frames())
    stream = [frame.body for frame in frames if frame.id == 1]
    assert all(isinstance(body, Token) for body in stream[:-1])
    assert isinstance(stream[-1], Failed) and "does not read" in stream[-1].error.message
    reader.feed_eof()
    await serving


@in_loop
async def test_one_that_reads_gets_everything(monkeypatch):
    monkeypatch.setattr(host_module, "_MOST_UNSENT_BYTES", 20_000)

    class Finite(Talker):
        async def call(self, spec, call, stream, session, cost):
            for _ in range(500):
                stream.put(Token("x" * 1000))
                await asyncio.sleep(0)
            stream.put(Finished("stop"))

    host, writer, reader = Finite(), Deaf(), asyncio.StreamReader()
    writer.reading.set()
    serving = asyncio.create_task(Client(host, reader, writer).serve())
    reader.feed_data(encode(Frame(1, Generate(Request(text="a")), SPEC)))
    await writer.until(b"Finished")
    assert len(list(writer.frames())) == 501
    reader.feed_eof()
    await serving
