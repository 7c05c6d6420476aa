"""Length-prefixed msgpack frames between front ends, host and workers.

A frame is four bytes of big-endian length and a msgpack array `[id, kind, body, model]`. `kind`
names one of the types below or an event of `backends.contract`; bodies are decoded into that type,
so a malformed frame is a `WireError` before anything acts on it. Nothing that is executed ever
travels: no pickles.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from hearth.backends.contract import (
    ChoiceFinished,
    Embeddings,
    EngineStats,
    Failed,
    Finished,
    HostLimits,
    HostStats,
    ModelInfo,
    ModelSpec,
    Pooling,
    Progress,
    Prompt,
    Ranks,
    Request,
    Scores,
    Started,
    Token,
    ToolCallPart,
)

MAX_FRAME_BYTES = 64 << 20
_READ_BYTES = 256 << 10
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """A frame that is too large, cut, or not what its kind says."""


class BodyError(WireError):
    """A whole frame of a known kind, whose body is not what the kind says: the next frame is fine.

    Attributes:
        ident: the frame's id.
    """

    def __init__(self, ident: int, message: str) -> None:
        super().__init__(message)
        self.ident = ident


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a front end. `limits` hold from then on, for all front ends; None: those that
    hold already.
    """

    version: str
    limits: HostLimits | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """First frame of the host."""

    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Asks the host to leave: at once if it is idle, else it answers `Busy`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load the model of the frame; answered by `ModelInfo`."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Run `request`; answered by its events."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the stream of the frame's id with `Finished("cancelled")`, if it is still running."""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Answered by `Ids`."""

    text: str
    special: bool
    add_special: bool = False
    """Add the tokens that the model wants at the beginning and at the end of a text."""


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Answered by `Text`."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Render:
    """Answered by `Prompt`: what the model would get for `request`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Score:
    """Answered by `Scores`."""

    ids: tuple[int, ...]
    session: str = ""
    top: int = 0


@dataclass(frozen=True, slots=True)
class Embed:
    """Answered by `Embeddings`."""

    texts: tuple[str | tuple[int, ...], ...]
    pooling: Pooling
    session: str = ""
    truncate: bool = False
    """Texts that exceed the context are cut at their end. False: they are refused."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Answered by `Ranks`."""

    query: str
    texts: tuple[str, ...]
    session: str = ""


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Forget every kept prefix; answered by `EngineStats`."""

    load: bool = True
    """False: only where the model is loaded, with whatever settings, else `ModelNotFound`."""


@dataclass(frozen=True, slots=True)
class GetEngineStats:
    """Asked by the host of a worker, which answers at once with `EngineStats`."""


@dataclass(frozen=True, slots=True)
class GetStats:
    """Answered by `HostStats`."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop the worker of the model with this path or name, or all of them; answered by `Text` (how
    many).
    """

    model: str | None


@dataclass(frozen=True, slots=True)
class EndRequest:
    """End somebody's call as if they had cancelled it; answered by `Text`: how many were ended."""

    pid: int
    """Of the worker that runs it."""
    request: int
    """`RequestStats.id`."""


@dataclass(frozen=True, slots=True)
class Ids:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


Call = (
    Load
    | Generate
    | Tokenize
    | Detokenize
    | Render
    | Score
    | Embed
    | Rank
    | ClearCache
    | GetEngineStats
    | GetStats
    | Unload
    | EndRequest
    | Leave
)
Answer = (
    ModelInfo
    | Ids
    | Text
    | Prompt
    | Scores
    | Embeddings
    | Ranks
    | EngineStats
    | HostStats
    | Started
    | Progress
    | Token
    | ToolCallPart
    | ChoiceFinished
    | Finished
    | Failed
)
Body = Hello | Welcome | Cancel | Call | Answer


def is_last(answer: Answer) -> bool:
    """Does `answer` end what a call gets? All do but those that more of a stream follows."""
    return not isinstance(answer, (Started, Progress, Token, ToolCallPart, ChoiceFinished))


_DECODERS: dict[str, msgspec.msgpack.Decoder[Body]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind)
    for kind in (
        *(Hello, Welcome, Cancel),
        *(Load, Generate, Tokenize, Detokenize, Render, Score, Embed, Rank, ClearCache),
        *(GetEngineStats, GetStats, Unload, EndRequest, Leave),
        *(ModelInfo, Ids, Text, Prompt, Scores, Embeddings, Ranks, EngineStats, HostStats),
        *(Started, Progress, Token, ToolCallPart, ChoiceFinished, Finished, Failed),
    )
}


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class Frame:
    """One message. `id` ties an answer to its call; `model` says which model a front end's call is
    for.
    """

    id: int
    body: Body
    model: ModelSpec | None = None


# Made once: finding out what a type is costs more than reading a frame.
_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw, ModelSpec | None])
_ENCODER = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """The frame's bytes, length first.

    Raises `WireError` if it is larger than `MAX_FRAME_BYTES`, nested too deeply, or holds what
    msgpack does not: text with lone surrogates, whole numbers beyond 64 bits.
    """
    kind = type(frame.body).__name__
    try:
        payload = _ENCODER.encode((frame.id, kind, frame.body, frame.model))
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise WireError(f"a {kind} frame cannot be written: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a {kind} frame of {len(payload):,} bytes exceeds {MAX_FRAME_BYTES:,}")
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> Frame:
    """The frame in `payload` (without its length). Raises `BodyError` or another `WireError`."""
    try:
        ident, kind, raw, model = _ENVELOPE.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"malformed frame: {error}") from error
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise WireError(f"unknown frame kind {kind!r}")
    try:
        return Frame(ident, decoder.decode(raw), model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BodyError(ident, f"malformed {kind} frame: {error}") from error


def _checked_length(head: bytes | bytearray) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {length:,} bytes exceeds {MAX_FRAME_BYTES:,}")
    return int(length)


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at a clean end. Raises `WireError` for a malformed or cut one."""
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise WireError("the connection ended inside a frame") from error
        return None
    try:
        return decode(await reader.readexactly(_checked_length(head)))
    except asyncio.IncompleteReadError as error:
        raise WireError("the connection ended inside a frame") from error


class FrameReader:
    """Reads frames many at a time: those of one step of a model arrive together."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    async def read(self) -> list[bytes]:
        """The payloads that have come, at least one; none at a clean end.

        Raises:
            WireError: the connection ended inside a frame, or one is too large.
        """
        while True:
            payloads = self._take()
            if payloads:
                return payloads
            data = await self._reader.read(_READ_BYTES)
            if not data:
                if self._buffer:
                    raise WireError("the connection ended inside a frame")
                return []
            self._buffer += data

    def _take(self) -> list[bytes]:
        """Whole frames out of the buffer. What came before one that is too large is taken first."""
        buffer, start = self._buffer, 0
        payloads: list[bytes] = []
        while len(buffer) - start >= _LENGTH.size:
            body = start + _LENGTH.size
            try:
                end = body + _checked_length(buffer[start:body])
            except WireError:
                if not payloads:
                    raise
                break
            if end > len(buffer):
                break
            payloads.append(bytes(buffer[body:end]))
            start = end
        del buffer[:start]
        return payloads


def read_frame_blocking(stream: BinaryIO) -> Frame | None:
    """`read_frame` for the worker's reader thread, on an unbuffered or buffered binary stream."""
    head = _read_exactly(stream, _LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise WireError("the connection ended inside a frame")
    length = _checked_length(head)
    payload = _read_exactly(stream, length)
    if len(payload) < length:
        raise WireError("the connection ended inside a frame")
    return decode(payload)


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
