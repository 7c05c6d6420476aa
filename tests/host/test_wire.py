"""Frames: what goes in comes out, and what is malformed is refused before anything acts on it."""

import asyncio
import io
import struct

import msgspec
import pytest

from async_tests import in_loop
from hearth.backends.contract.events import (
    ChoiceFinished,
    Embeddings,
    Failed,
    Finished,
    Progress,
    Scores,
    Started,
    Token,
    TokenLogprob,
)
from hearth.backends.contract.loaded import EngineStats, RequestStats
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.contract.wire import (
    MAX_FRAME_BYTES,
    Cancel,
    ClearCache,
    Embed,
    EndRequest,
    Frame,
    Generate,
    Ids,
    Score,
    Text,
    WireError,
    encode,
    is_last,
    opened,
    read_frame,
    sealed_frames,
)
from hearth.backends.errors import (
    ErrorInfo,
    HearthError,
    InvalidParameter,
    PromptTooLong,
    from_info,
    to_info,
)

FRAMES = [
    Frame(1, Cancel()),
    Frame(
        2,
        Generate(
            Request(
                messages=(Message("user", "hi \N{SEAT}"),),
                sampling=SamplingParams(logit_bias={3: -1.5}, seed=2**64 - 1, logprobs=2),
                stop=("\n\n",),
            )
        ),
        ModelSpec("/m.gguf", settings=ModelSettings(context=99, kv_type="q8_0")),
    ),
    Frame(3, Token("x", (1, 2), (TokenLogprob(1, "x", -0.5, ((1, "x", -0.5),)),))),
    Frame(4, Finished("stop", stop="END")),
    Frame(5, Failed(ErrorInfo("busy", "m", "h", {"retry_after_s": 1.5}))),
    Frame(6, Score((1, 2), 3)),
    Frame(7, Embed(("a", "b"), "cls")),
    Frame(8, ClearCache()),
    Frame(9, Scores((-0.5, -1.5))),
    Frame(10, Embeddings(((0.6, 0.8),), 3)),
    Frame(11, ChoiceFinished(2, "stop", "END")),
    Frame(
        12,
        EngineStats(
            running=1,
            waiting=2,
            pool_tokens=3,
            allocated_tokens=4,
            live_tokens=5,
            kept_tokens=6,
            kept_prefixes=7,
            kv_bytes_per_token=8,
        ),
    ),
    Frame(
        13,
        EngineStats(running=1, requests=(RequestStats(9, "me", "prefill", 100, 20),)),
    ),
    Frame(14, EndRequest(4711, 9)),
]


def is_refused(content, part=0):
    """Whether a frame with this content is refused, or its body is."""
    data = struct.pack(">IQ", len(content), part << 56 | 1) + content
    try:
        frame = read_frame(io.BytesIO(data))
    except WireError:
        return True
    return isinstance(frame.body, Failed) and frame.body.error.code == InvalidParameter.code


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: type(f.body).__name__)
def test_a_frame_survives_the_way(frame):
    data = encode(frame)
    assert read_frame(io.BytesIO(data)) == frame


@pytest.mark.parametrize("size", [1, 11, 13, 100, 100_000])
@in_loop
async def test_asynchronous_reading_agrees_and_ends_cleanly(size):
    data = b"".join(map(encode, FRAMES))
    reader, read = asyncio.StreamReader(), []

    async def feed():
        for at in range(0, len(data), size):
            reader.feed_data(data[at : at + size])
            await asyncio.sleep(0)
        reader.feed_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        async for frames in sealed_frames(reader):
            read += map(opened, frames)
    assert read == FRAMES


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        *map(
            msgspec.msgpack.encode,
            (
                ["Cancel"],
                ["os.system", {}, None],
                [1, "Cancel", {}, None],
                ["Score", {"ids": 5}, None],
                ["Score", {}, None],
                ["Finished", {"reason": "bored"}, None],
                ["Load", {}, {"path": 7}],
            ),
        ),
    ],
)
def test_malformed_contents_are_refused(payload):
    assert is_refused(payload)


@pytest.mark.parametrize(
    ("part", "content"), [(3, [5]), (3, []), (3, {}), (2, [1]), (6, ["x"]), (255, ["x"])]
)
def test_malformed_parts_of_streams_are_refused(part, content):
    assert is_refused(msgspec.msgpack.encode(content), part)


def test_what_is_nested_too_deeply_is_refused_on_both_sides():
    for depth in (700, 900, 950, 1_000, 100_000):
        body = b"\x81\xa1a" * depth + b"\xc0"
        assert is_refused(b"\x93\xa8Generate" + body + b"\xc0")
    deep: dict = {}
    for _ in range(5_000):
        deep = {"a": deep}
    with pytest.raises(WireError, match="recursion"):
        encode(Frame(1, Generate(Request(text="x", template_values=deep))))


@pytest.mark.parametrize(
    "answer", [Started(1), Progress(1, 2), Token("x"), ChoiceFinished(0, "stop")]
)
def test_more_of_a_stream_follows_some_answers(answer):
    assert not is_last(answer)


@pytest.mark.parametrize(
    "answer",
    [
        Finished("stop"),
        Failed(ErrorInfo("busy", "m")),
        Scores(()),
        Embeddings((), 0),
        EngineStats(),
        Ids(()),
        Text(""),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_others_are_the_last(answer):
    assert is_last(answer)


@pytest.mark.parametrize("cut", [1, 3, 4, 11, 12, 13, 20])
def test_a_cut_frame_is_not_a_clean_end(cut):
    data = encode(FRAMES[1])[:cut]
    with pytest.raises(WireError):
        read_frame(io.BytesIO(data))


def test_an_absurd_length_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="exceeds"):
        read_frame(io.BytesIO(struct.pack(">IQ", MAX_FRAME_BYTES + 1, 1)))


@in_loop
async def test_what_came_before_a_frame_that_is_too_large_is_read():
    reader = asyncio.StreamReader()
    reader.feed_data(encode(FRAMES[0]) + encode(FRAMES[3]) + struct.pack(">IQ", 1 << 31, 1))
    frames = sealed_frames(reader)
    assert list(map(opened, await anext(frames))) == [FRAMES[0], FRAMES[3]]
    with pytest.raises(WireError, match="exceeds"):
        await anext(frames)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: type(f.body).__name__)
@in_loop
async def test_what_is_relayed_is_the_same_bytes_under_another_id(frame):
    data, reader = encode(frame), asyncio.StreamReader()
    reader.feed_data(data)
    (sealed,) = await anext(sealed_frames(reader))
    relayed = encode(Frame(99, sealed))
    assert relayed == data[:5] + (99).to_bytes(7, "big") + data[12:]
    assert read_frame(io.BytesIO(relayed)).body == frame.body


def test_errors_keep_their_type_and_data():
    error = PromptTooLong("text", "too long", prompt_tokens=9, context=8)
    back = from_info(to_info(error))
    assert type(back) is PromptTooLong
    assert (
        back.data == {"param": "text", "prompt_tokens": 9, "context": 8} and back.hint == error.hint
    )
    named = from_info(to_info(InvalidParameter("top_p", "must be in (0, 1]")))
    assert isinstance(named, InvalidParameter) and named.param == "top_p"
    assert from_info(ErrorInfo("from_the_future", "m")).message == "m"


def test_an_error_that_is_declared_late_is_known_then():
    assert type(from_info(ErrorInfo("declared_late", "m"))) is HearthError

    class DeclaredLate(HearthError):
        code = "declared_late"

    assert type(from_info(ErrorInfo("declared_late", "m"))) is DeclaredLate
    assert to_info(KeyError("x")).code == "internal_error"
