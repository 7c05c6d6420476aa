"""Length-prefixed msgpack frames between front ends, host and workers.

A frame is four bytes of length, one of part, seven of id (all big-endian), and its content. The
part is the number in `PARTS`, from 1, of what is sent of a stream, and the content is the msgpack
array of its fields. It is 0 for all others, whose content is the array `[kind, body]` for an
answer, `[kind, body, model, session, cost]` for a call, where `kind` names one of the types below
or an event of this package. Front ends and workers decode the body into its type, so a malformed
frame is a `WireError` before anything acts on it; the host relays contents as bytes (`Sealed`)
under another id, parts of a stream without looking into them. Nothing that is executed is ever
sent: no pickles.

A new call is one class here, a subclass of `Call`, or of `ModelCall` if a worker answers it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar, get_args

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
from hearth.backends.errors import (
    HearthError,
    InternalError,
    InvalidParameter,
    LimitExceeded,
    to_info,
)

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 << 20
NUMBER_BYTES = 9
"""Of a number in a frame, at most."""
_READ_BYTES = 256 << 10
_HEAD = struct.Struct(">IQ")
_HEAD_BYTES = _HEAD.size
_Answer = TypeVar("_Answer", covariant=True)


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


def _size(text: str | tuple[int, ...]) -> int:
    """Bytes of a text, or the number of token ids."""
    if isinstance(text, str) and not text.isascii():
        return len(text.encode(errors="surrogatepass"))
    return len(text)


def _prompt_size(request: Request) -> int:
    """Bytes of its text, or its number of token ids."""
    texts = [request.text or "", request.suffix or ""]
    for message in request.messages or ():
        texts += (message.content, message.reasoning)
        texts += (call.arguments for call in message.tool_calls)
    texts += (f"{tool.description}{tool.parameters}" for tool in request.tools)
    return len(request.token_ids or ()) + sum(map(_size, texts))


def _certain_bytes(request: Request) -> int:
    """Bytes of text that the prompt is certain to hold: templates leave out thoughts, tools and
    parts of earlier answers, and strip white space, but keep what the user writes.
    """
    texts = [request.text or "", request.suffix or ""]
    texts += (one.content.strip() for one in request.messages or () if one.role == "user")
    return sum(map(_size, texts))


def _texts_cost(
    texts: Sequence[str | tuple[int, ...]], each: int = 0, *, certain: bool = True
) -> Cost:
    """Of a call with `texts`, to each of which `each` bytes are added; the largest of them is what
    is `certain`.
    """
    sizes = [each + _size(text) for text in texts]
    least = None
    if sizes and certain:
        size = max(sizes)
        index = sizes.index(size)
        name = "nbytes" if isinstance(texts[index], str) else "tokens"
        least = Least(f"texts[{index}]", **{name: size})
    return Cost(1, sum(sizes), least=least)


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


class Call(Generic[_Answer]):
    """What a front end asks of the host. The type argument is the answer's; `Generate` alone gets
    several.
    """

    def cost(self) -> Cost | None:
        """What it may take; None where it needs neither model work nor preparation."""
        return None


class ModelCall(Call[_Answer]):
    """A call that a worker answers; the host relays it without decoding it."""


@dataclass(frozen=True, slots=True)
class Leave(Call["Text"]):
    """Asks the host to leave: at once if it is idle, else it answers `Busy`."""


@dataclass(frozen=True, slots=True)
class Load(Call[ModelInfo]):
    """Load the model of the frame."""


@dataclass(frozen=True, slots=True)
class Check(Call["Text"]):
    """Asks, before a large call is sent, whether one of this cost can fit at all; answered by an
    empty `Text`, or by the error that refuses it.
    """

    of: Cost


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the stream of the frame's id with `Finished("cancelled")`, if it is still running."""


@dataclass(frozen=True, slots=True)
class Generate(ModelCall["Answer"]):
    """Run `request`; answered by its events."""

    request: Request

    def cost(self) -> Cost:
        request, least = self.request, None
        if request.truncate_prompt_tokens is None and request.attention_sinks is None:
            ids = len(request.token_ids or ())
            least = Least(request.prompt_field, ids, _certain_bytes(request))
        count = request.n if request.beams is None else max(request.n, request.beams.width)
        return Cost(count, _prompt_size(request), least=least)


@dataclass(frozen=True, slots=True)
class Tokenize(ModelCall["Ids"]):
    text: str
    special: bool
    add_special: bool = False
    """Add the tokens that the model wants at the beginning and at the end of a text."""

    def cost(self) -> Cost:
        return Cost(1, _size(self.text), computes=False)


@dataclass(frozen=True, slots=True)
class Detokenize(ModelCall["Text"]):
    ids: tuple[int, ...]

    def cost(self) -> Cost:
        return Cost(1, len(self.ids), computes=False)


@dataclass(frozen=True, slots=True)
class Render(ModelCall[Prompt]):
    """What the model would get for `request`."""

    request: Request

    def cost(self) -> Cost:
        return Cost(1, _prompt_size(self.request), computes=False)


@dataclass(frozen=True, slots=True)
class Restore(ModelCall["Finished"]):
    """Bring back what the disk has of the prompt of `request`, which will be sent soon."""

    request: Request

    def cost(self) -> Cost:
        return Cost(1, _prompt_size(self.request), computes=False)


@dataclass(frozen=True, slots=True)
class Score(ModelCall[Scores]):
    ids: tuple[int, ...]
    top: int = 0

    def cost(self) -> Cost:
        return Cost(1, len(self.ids), least=Least("token_ids", tokens=len(self.ids)))


@dataclass(frozen=True, slots=True)
class Embed(ModelCall[Embeddings]):
    texts: tuple[str | tuple[int, ...], ...]
    pooling: Pooling
    truncate: bool = False
    """Texts that exceed the context are cut at their end. False: they are refused."""

    def cost(self) -> Cost:
        return _texts_cost(self.texts, certain=not self.truncate)


@dataclass(frozen=True, slots=True)
class Rank(ModelCall[Ranks]):
    query: str
    texts: tuple[str, ...]

    def cost(self) -> Cost:
        return _texts_cost(self.texts, _size(self.query))


@dataclass(frozen=True, slots=True)
class ClearCache(Call[EngineStats]):
    """Forget every kept prefix."""

    load: bool = True
    """False: only where the model is loaded, with whatever settings, else `ModelNotFound`."""


@dataclass(frozen=True, slots=True)
class GetEngineStats(Call[EngineStats]):
    """Asked by the host of a worker, which answers at once."""


@dataclass(frozen=True, slots=True)
class GetStats(Call[HostStats]):
    """What the host runs."""


@dataclass(frozen=True, slots=True)
class Unload(Call["Text"]):
    """Stop the worker of the model with this path or name, or all of them; the answer says how
    many.
    """

    model: str | None


@dataclass(frozen=True, slots=True)
class EndRequest(Call["Text"]):
    """End somebody's call as if they had cancelled it; the answer says how many were ended."""

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
Body = Hello | Welcome | Cancel | Call[object] | Answer

PARTS = (Started, Progress, Token, ToolCallPart, ChoiceFinished)
"""Answers that more of a stream follows."""
_NUMBERS: dict[type, int] = {kind: number for number, kind in enumerate(PARTS, 1)}
_PART_NAMES = ("", *(kind.__name__ for kind in PARTS))
_ID_BITS = 56
_MOST_ID = (1 << _ID_BITS) - 1

_DECODERS: dict[str, msgspec.msgpack.Decoder[Body]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind)
    for kind in (
        *(Hello, Welcome, Cancel),
        *(kind for kind in Call.__subclasses__() if kind is not ModelCall),
        *ModelCall.__subclasses__(),
        *get_args(Answer),
    )
}
RELAYED = frozenset(kind.__name__ for kind in ModelCall.__subclasses__())
"""Kinds of calls that the host does not decode."""


class Sealed(msgspec.Struct, array_like=True, gc=False):
    """A frame's content as it is sent, its body not decoded: the host relays it as bytes."""

    kind: str
    """Name of the body's type."""
    body: msgspec.Raw
    model: ModelSpec | None = None
    session: str = ""
    cost: Cost | None = None
    id: int = 0
    """The frame's; not part of what is sent as content, like the next two."""
    content: bytes = b""
    """All of it, encoded."""
    part: int = 0
    """Which of `PARTS` it is, from 1."""

    def relayed(self, ident: int) -> bytes:
        """The frame with this content under another id."""
        content = self.content
        return _HEAD.pack(len(content), self.part << _ID_BITS | ident) + content

    def drop(self) -> None:
        """Free the bytes, which may be megabytes, once they are relayed."""
        self.content, self.body = b"", _NO_BODY

    def open(self) -> Body:
        """The decoded body. Raises `WireError` if it is not what its kind says."""
        try:
            return _DECODERS[self.kind].decode(self.content if self.part else self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed {self.kind} frame: {error}") from error


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


# Made once: finding out what a type is costs more than reading a frame.
_NO_BODY = msgspec.Raw()
_CONTENT = msgspec.msgpack.Decoder(Sealed)
_ENCODER = msgspec.msgpack.Encoder()


def unsealed(body: Body | Sealed) -> Body:
    """`body`, decoded if it is not. Raises `WireError`."""
    return body.open() if isinstance(body, Sealed) else body


def is_last(answer: Answer | Sealed) -> bool:
    """Does `answer` end what a call gets? All do but those that more of a stream follows."""
    return not answer.part if isinstance(answer, Sealed) else type(answer) not in _NUMBERS


def encode(frame: Frame) -> bytes:
    """The frame's bytes, length first.

    Raises:
        FrameTooLarge: it is larger than `MAX_FRAME_BYTES`.
        WireError: it is nested too deeply, or holds what msgpack does not: text with lone
            surrogates, whole numbers beyond 64 bits.
    """
    body = frame.body
    if isinstance(body, Sealed):
        return body.relayed(frame.id)
    if frame.model is not None or frame.session or frame.cost is not None:
        return _encode(frame.id, body, frame.model, frame.session, frame.cost)
    return _encode(frame.id, body)


def _encode(ident: int, body: Body, *call: object) -> bytes:
    """See `encode`; `call` is what only calls have."""
    kind = type(body)
    part = _NUMBERS.get(kind, 0)
    try:
        content = _ENCODER.encode(body if part else (kind.__name__, body, *call))
    except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise WireError(f"a {kind.__name__} frame cannot be written: {error}") from error
    if len(content) > MAX_FRAME_BYTES:
        raise _too_large(len(content), f"{kind.__name__} ")
    return _HEAD.pack(len(content), part << _ID_BITS | ident) + content


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


def encode_answer(ident: int, body: Body) -> bytes:
    """The frame of an answer; one that cannot be sent becomes a `Failed` that says why."""
    try:
        return _encode(ident, body)
    except FrameTooLarge as error:
        failure: HearthError = LimitExceeded(
            "request", f"The answer is too large: {error}.", "Ask for less at a time."
        )
    except WireError as error:
        failure = InternalError(f"The answer cannot be sent: {error}.")
    log.error("%s", failure)
    return _encode(ident, Failed(to_info(failure)))


def unreadable(error: WireError) -> Failed:
    """The answer to a call whose body cannot be read."""
    why = f"The request cannot be read: {error}."
    return Failed(to_info(InvalidParameter("request", why)))


def _sealed(head: int, content: bytes) -> Sealed:
    """The frame that has `content`, its body not decoded. Raises `WireError`.

    Args:
        head: part and id.
    """
    part, ident = head >> _ID_BITS, head & _MOST_ID
    if part:
        if part > len(PARTS):
            raise WireError(f"unknown part {part} of a stream")
        return Sealed(_PART_NAMES[part], _NO_BODY, None, "", None, ident, content, part)
    try:
        sealed = _CONTENT.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"malformed frame: {error}") from error
    if sealed.kind not in _DECODERS:
        raise WireError(f"unknown frame kind {sealed.kind!r}")
    sealed.id, sealed.content, sealed.part = ident, content, 0
    return sealed


def opened(sealed: Sealed) -> Frame:
    """The frame with its body decoded. Raises `BodyError`."""
    try:
        body = sealed.open()
    except WireError as error:
        raise BodyError(sealed.id, str(error)) from error
    return Frame(sealed.id, body, sealed.model, sealed.session, sealed.cost)


def _too_large(size: int, kind: str = "") -> FrameTooLarge:
    return FrameTooLarge(f"a {kind}frame of {size:,} bytes exceeds {MAX_FRAME_BYTES:,}")


async def sealed_frames(reader: asyncio.StreamReader) -> AsyncGenerator[list[Sealed], None]:
    """The frames that `reader` gets, to a clean end: at once those that arrive together, such as
    those of one step of a model, since to wait for each costs as much as to relay it.

    Raises:
        WireError: one is malformed or too large, or the connection ended inside one; those before
            it were given.
    """
    left, needed = bytearray(), _HEAD_BYTES
    while data := await reader.read(_READ_BYTES):
        if left:
            left += data
            if len(left) < needed:
                continue
            data = bytes(left)
        frames: list[Sealed] = []
        try:
            end, needed = _split(data, frames)
        except WireError:
            if frames:
                yield frames
            raise
        left = bytearray(data[end:])
        if frames:
            yield frames
    if left:
        raise WireError("the connection ended inside a frame")


def _split(data: bytes, frames: list[Sealed]) -> tuple[int, int]:
    """Add the complete frames at the beginning of `data`; returns where the last one ends, and how
    many bytes from there on are the next one, or its head. Raises `WireError`.
    """
    start, end = 0, len(data)
    while (begin := start + _HEAD_BYTES) <= end:
        size, head = _HEAD.unpack_from(data, start)
        if size > MAX_FRAME_BYTES:
            raise _too_large(size)
        if begin + size > end:
            return start, _HEAD_BYTES + size
        start = begin + size
        frames.append(_sealed(head, data[begin:start]))
    return start, _HEAD_BYTES


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame of a blocking stream, buffered or not; None at a clean end. Raises
    `BodyError` or another `WireError`.
    """
    head = _read(stream, _HEAD_BYTES)
    if not head:
        return None
    size, ident = _HEAD.unpack(head)
    if size > MAX_FRAME_BYTES:
        raise _too_large(size)
    return opened(_sealed(ident, _read(stream, size)))


def _read(stream: BinaryIO, count: int) -> bytes:
    """`count` bytes; none at the end where a head should be. Raises `WireError` at any other."""
    parts: list[bytes] = []
    left = count
    while left:
        part = stream.read(left)
        if not part and not parts and count == _HEAD_BYTES:
            return b""
        if not part:
            raise WireError("the connection ended inside a frame")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
