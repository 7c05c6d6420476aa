"""Length-prefixed msgpack frames between front ends, host and workers.

A frame is four bytes of big-endian length and a msgpack array: `[id, kind, body]` for an answer,
`[id, kind, body, model, session, cost]` for a call. `kind` names one of the types below or an event
of this package. Front ends and workers decode the body into that type, so a malformed frame
is a `WireError` before anything acts on it; the host relays bodies as bytes (`Sealed`). Nothing
that is executed is ever sent: no pickles.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass, replace
from typing import BinaryIO, get_args

import msgspec

from hearth.backends.contract.events import (
    ChoiceFinished,
    Embeddings,
    Failed,
    Finished,
    Progress,
    Prompt,
    Ranks,
    Scores,
    Started,
    Token,
    ToolCallPart,
)
from hearth.backends.contract.loaded import EngineStats, HostStats, ModelInfo
from hearth.backends.contract.models import HostLimits, ModelSpec
from hearth.backends.contract.requests import Pooling, Request
from hearth.backends.errors import HearthError, InternalError, LimitExceeded, to_info

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 << 20
NUMBER_BYTES = 9
"""Of a number in a frame, at most."""
_READ_BYTES = 256 << 10
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """A frame that is too large, cut, or not what its kind says."""


class FrameTooLarge(WireError):
    """A frame has more than `MAX_FRAME_BYTES`."""


class BodyError(WireError):
    """A whole frame of a known kind, whose body is not what the kind says: the next frame is fine.

    Attributes:
        ident: the frame's id.
    """

    def __init__(self, ident: int, message: str) -> None:
        super().__init__(message)
        self.ident = ident


@dataclass(frozen=True, slots=True)
class Least:
    """What one sequence of a call is certain to hold."""

    param: str
    """Where it is: a field of the call."""
    tokens: int = 0
    """Token ids."""
    nbytes: int = 0
    """Bytes of text."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call may take, computed by the front end from the sizes of what it sends."""

    sessions: int
    """Sequences that it makes; 1 for a call that only prepares something."""
    prompt_tokens: int
    """Upper bound: a token is at least one byte of its text."""
    computes: bool = True
    """The model runs for it, so how long it takes says how long others must wait."""
    least: Least | None = None
    """None where nothing is certain."""


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
class Check:
    """Asks, before a large call is sent, whether one of the frame's cost can fit at all; answered
    by an empty `Text`, or by the error that refuses it.
    """


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
    | Check
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


_MORE_FOLLOWS = frozenset(
    kind.__name__ for kind in (Started, Progress, Token, ToolCallPart, ChoiceFinished)
)


_EMPTY = msgspec.Raw(b"\xc0")


@dataclass(slots=True)  # Not frozen: one is made for each token, and freezing costs a microsecond.
class Sealed:
    """A body as its bytes: the host relays it without decoding it."""

    kind: str
    """Name of the body's type."""
    raw: msgspec.Raw

    @property
    def nbytes(self) -> int:
        """Size of the body in bytes."""
        return memoryview(self.raw).nbytes

    def drop(self) -> None:
        """Free the bytes, which may be megabytes, once they are relayed."""
        self.raw = _EMPTY

    def open(self) -> Body:
        """The decoded body. Raises `WireError` if it is not what its kind says."""
        decoder = _DECODERS.get(self.kind)
        if decoder is None:
            raise WireError(f"unknown frame kind {self.kind!r}")
        try:
            return decoder.decode(self.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed {self.kind} frame: {error}") from error


def unsealed(body: Body | Sealed) -> Body:
    """`body`, decoded if it is not. Raises `WireError`."""
    return body.open() if isinstance(body, Sealed) else body


def kind_of(body: Body | Sealed) -> str:
    """The name of the type of `body`."""
    return body.kind if isinstance(body, Sealed) else type(body).__name__


def is_last(answer: Answer | Sealed) -> bool:
    """Does `answer` end what a call gets? All do but those that more of a stream follows."""
    return kind_of(answer) not in _MORE_FOLLOWS


_DECODERS: dict[str, msgspec.msgpack.Decoder[Body]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(Body)
}


@dataclass(slots=True)  # Not frozen: one is made for each token, and freezing costs a microsecond.
class Frame:
    """One message. `id` ties an answer to its call. `model`, `session` and `cost` belong to calls:
    which model a front end's call is for, who asks, and what it may take.
    """

    id: int
    body: Body | Sealed
    model: ModelSpec | None = None
    session: str = ""
    cost: Cost | None = None


RELAYED = frozenset(
    kind.__name__ for kind in (Generate, Tokenize, Detokenize, Render, Score, Embed, Rank)
)
"""Kinds of calls that the host does not decode."""


def session_of(call: Body) -> str:
    """Whom `call` is for; empty where it does not say."""
    if isinstance(call, Generate | Render):
        return call.request.session
    return call.session if isinstance(call, Score | Embed | Rank) else ""


def for_session(call: Body, session: str) -> Body:
    """`call` for `session`, where it does not say whom it is for."""
    if not session or session_of(call):
        return call
    if isinstance(call, Generate):
        return Generate(replace(call.request, session=session))
    return replace(call, session=session) if isinstance(call, Score | Embed | Rank) else call


class _Envelope(msgspec.Struct, array_like=True, gc=False):
    """A frame as it is sent; an answer has the first three only."""

    id: int
    kind: str
    body: msgspec.Raw
    model: ModelSpec | None = None
    session: str = ""
    cost: Cost | None = None


# Made once: finding out what a type is costs more than reading a frame.
_ENVELOPE = msgspec.msgpack.Decoder(_Envelope)
_ENCODER = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """The frame's bytes, length first.

    Raises:
        FrameTooLarge: it is larger than `MAX_FRAME_BYTES`.
        WireError: it is nested too deeply, or holds what msgpack does not: text with lone
            surrogates, whole numbers beyond 64 bits.
    """
    body = frame.body
    kind = kind_of(body)
    content = body.raw if isinstance(body, Sealed) else body
    parts: tuple[object, ...] = (frame.id, kind, content)
    if frame.model is not None or frame.session or frame.cost is not None:
        parts = (*parts, frame.model, frame.session, frame.cost)
    try:
        payload = _ENCODER.encode(parts)
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise WireError(f"a {kind} frame cannot be written: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a {kind} frame of {len(payload):,} bytes exceeds {MAX_FRAME_BYTES:,}")
    return _LENGTH.pack(len(payload)) + payload


def check_answer_fits(param: str, count: int, each_bytes: int) -> None:
    """Check before the work that an answer of `count` parts of `each_bytes` fits into a frame.

    Raises:
        LimitExceeded: it does not; `param` has so many items, or so long a text.
    """
    most = MAX_FRAME_BYTES // each_bytes
    if count > most:
        raise LimitExceeded(
            param,
            f"{param} has {count:,} items or characters; the answer to more than {most:,} would"
            f" exceed {MAX_FRAME_BYTES:,} bytes.",
            "Send fewer at a time.",
        )


def encode_answer(ident: int, body: Body | Sealed) -> bytes:
    """The frame of an answer; one that cannot be sent becomes a `Failed` that says why."""
    try:
        return encode(Frame(ident, body))
    except FrameTooLarge as error:
        failure: HearthError = LimitExceeded(
            "request", f"The answer is too large: {error}.", "Ask for less at a time."
        )
    except WireError as error:
        failure = InternalError(f"The answer cannot be sent: {error}.")
    log.error("%s", failure)
    return encode(Frame(ident, Failed(to_info(failure))))


def decode_sealed(payload: bytes) -> Frame:
    """The frame in `payload` (without its length), its body a `Sealed`. Raises `WireError`."""
    try:
        found = _ENVELOPE.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"malformed frame: {error}") from error
    if found.kind not in _DECODERS:
        raise WireError(f"unknown frame kind {found.kind!r}")
    body = Sealed(found.kind, found.body)
    return Frame(found.id, body, found.model, found.session, found.cost)


def opened(frame: Frame) -> Frame:
    """`frame` with its body decoded. Raises `BodyError`."""
    if isinstance(frame.body, Sealed):
        try:
            frame.body = frame.body.open()
        except WireError as error:
            raise BodyError(frame.id, str(error)) from error
    return frame


def decode(payload: bytes) -> Frame:
    """The frame in `payload` (without its length). Raises `BodyError` or another `WireError`."""
    return opened(decode_sealed(payload))


def _checked_length(head: bytes | bytearray) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {length:,} bytes exceeds {MAX_FRAME_BYTES:,}")
    return int(length)


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at a clean end. Raises `WireError` for a malformed or cut one."""
    frame = await read_sealed_frame(reader)
    return None if frame is None else opened(frame)


async def read_sealed_frame(reader: asyncio.StreamReader) -> Frame | None:
    """`read_frame` without decoding the body."""
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise WireError("the connection ended inside a frame") from error
        return None
    try:
        return decode_sealed(await reader.readexactly(_checked_length(head)))
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
