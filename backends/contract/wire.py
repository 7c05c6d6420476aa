"""Length-prefixed msgpack frames between front ends, host and workers.

A frame is four bytes of length, one byte of part, seven bytes of id (all big-endian), and the
content. For a part of a stream, the part byte is its number in `PARTS`, from 1, and the content is
the msgpack array of its fields. For all other frames the part byte is 0, and the content is the
array `[kind, body]` for an answer or `[kind, body, model, session, cost]` for a call, where `kind`
names one of the types below or an event of this package. Front ends and workers decode the body
into its type, so a malformed frame raises `WireError` before anything acts on it. The host relays
contents as bytes (`Sealed`) under another id, and parts of a stream without decoding them. Nothing
executable is ever sent: no pickles.

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
"""Most bytes that a number takes in a frame."""
_READ_BYTES = 256 << 10
_HEAD = struct.Struct(">IQ")
_HEAD_BYTES = _HEAD.size
_Answer = TypeVar("_Answer", covariant=True)


class WireError(Exception):
    """A frame is too large or incomplete, or its body does not match its kind."""


class FrameTooLarge(WireError):
    """A frame has more than `MAX_FRAME_BYTES`."""


@dataclass(frozen=True, slots=True)
class Least:
    """Lower bound of the size of one sequence of a call."""

    param: str
    """The field of the call that holds the sequence."""
    tokens: int = 0
    """Token ids."""
    nbytes: int = 0
    """Bytes of text."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources that a call may take, computed by the front end from the sizes of what it sends."""

    sessions: int
    """Number of sequences of the call; 1 for a call that only prepares something."""
    prompt_tokens: int
    """Upper bound: a token is at least one byte of its text."""
    computes: bool = True
    """The model runs for the call, so that its duration tells how long other calls must wait."""
    least: Least | None = None
    """None if no lower bound is known."""


def _size(text: str | tuple[int, ...]) -> int:
    """UTF-8 bytes of a text, or the number of token ids."""
    if isinstance(text, str) and not text.isascii():
        return len(text.encode(errors="surrogatepass"))
    return len(text)


def _prompt_size(request: Request) -> int:
    """Bytes of the text of `request`, or its number of token ids."""
    texts = [request.text or "", request.suffix or ""]
    for message in request.messages or ():
        texts += (message.content, message.reasoning)
        texts += (call.arguments for call in message.tool_calls)
    texts += (f"{tool.description}{tool.parameters}" for tool in request.tools)
    return len(request.token_ids or ()) + sum(map(_size, texts))


def _certain_bytes(request: Request) -> int:
    """Lower bound of the bytes of text in the prompt: templates may leave out reasoning, tools and
    parts of earlier answers, and strip white space, but they keep what the user writes.
    """
    texts = [request.text or "", request.suffix or ""]
    texts += (one.content.strip() for one in request.messages or () if one.role == "user")
    return sum(map(_size, texts))


def _texts_cost(
    texts: Sequence[str | tuple[int, ...]], each: int = 0, *, certain: bool = True
) -> Cost:
    """The cost of a call with `texts`, with `each` bytes added to each of them. If `certain`, the
    largest of them is its lower bound.
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
    """First frame of a front end. `limits` apply from then on, to all front ends; None: keep the
    present limits.
    """

    version: str
    limits: HostLimits | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """First frame of the host."""

    version: str
    pid: int


class Call(Generic[_Answer]):
    """A call from a front end to the host. The type argument is the type of the answer; only
    `Generate` gets several answers.
    """

    def cost(self) -> Cost | None:
        """Resources that the call may take; None if it needs neither model work nor preparation."""
        return None


class ModelCall(Call[_Answer]):
    """A call that a worker answers; the host relays it without decoding it."""


@dataclass(frozen=True, slots=True)
class Leave(Call["Text"]):
    """Asks the host to exit: it does so at once if it is idle, else it answers `Busy`."""


@dataclass(frozen=True, slots=True)
class Load(Call[ModelInfo]):
    """Load the frame's model."""


@dataclass(frozen=True, slots=True)
class Check(Call["Text"]):
    """Asks, before a large call is sent, whether a call of this cost can fit at all. The answer is
    an empty `Text`, or the error that refuses the call.
    """

    of: Cost


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the stream with the frame's id, if it is still running, by `Finished("cancelled")`."""


@dataclass(frozen=True, slots=True)
class Generate(ModelCall["Answer"]):
    """Run `request`; the answers are its events."""

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
    """Add the tokens that the model expects at the beginning and at the end of a text."""

    def cost(self) -> Cost:
        return Cost(1, _size(self.text), computes=False)


@dataclass(frozen=True, slots=True)
class Detokenize(ModelCall["Text"]):
    ids: tuple[int, ...]

    def cost(self) -> Cost:
        return Cost(1, len(self.ids), computes=False)


@dataclass(frozen=True, slots=True)
class Render(ModelCall[Prompt]):
    """The prompt that the model would get for `request`."""

    request: Request

    def cost(self) -> Cost:
        return Cost(1, _prompt_size(self.request), computes=False)


@dataclass(frozen=True, slots=True)
class Restore(ModelCall["Finished"]):
    """Read the part of the prompt of `request` that is on disk back into the KV cache, because the
    request will be sent soon.
    """

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
    """True: texts that exceed the context are cut at their end. False: they are refused."""

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
    """False: do not load the model; it may be loaded with any settings, and `ModelNotFound` is
    raised if it is not loaded.
    """


@dataclass(frozen=True, slots=True)
class GetEngineStats(Call[EngineStats]):
    """Sent by the host to a worker, which answers at once."""


@dataclass(frozen=True, slots=True)
class GetStats(Call[HostStats]):
    """Asks what the host is running."""


@dataclass(frozen=True, slots=True)
class Unload(Call["Text"]):
    """Stop the worker of the model with this path or name, or all workers if None; the answer is
    the number of workers that were stopped.
    """

    model: str | None


@dataclass(frozen=True, slots=True)
class EndRequest(Call["Text"]):
    """End a call, of any client, as if the client had cancelled it; the answer is the number of
    calls that were ended.
    """

    pid: int
    """Process id of the worker that runs the call."""
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
"""Answers that are followed by more of their stream."""
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
    """A frame's content as sent, with the body not decoded: the host relays it as bytes."""

    kind: str
    """Name of the body's type."""
    body: msgspec.Raw
    model: ModelSpec | None = None
    session: str = ""
    cost: Cost | None = None
    id: int = 0
    """The frame's id. Like the next two fields, it is not part of the content."""
    content: bytes = b""
    """The whole content, encoded."""
    part: int = 0
    """Number of the body's type in `PARTS`, from 1; 0 if it is none of them."""

    def relayed(self, ident: int) -> bytes:
        """The encoded frame with this content under another id."""
        content = self.content
        return _HEAD.pack(len(content), self.part << _ID_BITS | ident) + content

    def drop(self) -> None:
        """Release the bytes, which may be megabytes, after they have been relayed."""
        self.content, self.body = b"", _NO_BODY

    def open(self) -> Body:
        """The decoded body. Raises `WireError` if it does not match its kind."""
        try:
            return _DECODERS[self.kind].decode(self.content if self.part else self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed {self.kind} frame: {error}") from error


@dataclass(slots=True)  # Not frozen: one is made for each token, and freezing costs a microsecond.
class Frame:
    """One message. `id` matches an answer to its call. Only calls have `model`, `session` and
    `cost`: the model that the call is for, the session that sends it, and the resources that it
    may take.
    """

    id: int
    body: Body | Sealed
    model: ModelSpec | None = None
    session: str = ""
    cost: Cost | None = None


# Made once: inspecting a type costs more than reading a frame.
_NO_BODY = msgspec.Raw()
_CONTENT = msgspec.msgpack.Decoder(Sealed)
_ENCODER = msgspec.msgpack.Encoder()


def unsealed(body: Body | Sealed) -> Body:
    """`body`, decoded if it is sealed. Raises `WireError`."""
    return body.open() if isinstance(body, Sealed) else body


def is_last(answer: Answer | Sealed) -> bool:
    """Whether `answer` is the last one of its call: every answer but the types in `PARTS` is."""
    return not answer.part if isinstance(answer, Sealed) else type(answer) not in _NUMBERS


def encode(frame: Frame) -> bytes:
    """The frame's bytes, length first.

    Raises:
        FrameTooLarge: it is larger than `MAX_FRAME_BYTES`.
        WireError: it is nested too deeply, or holds values that msgpack cannot encode: text with
            lone surrogates, or integers beyond 64 bits.
    """
    body = frame.body
    if isinstance(body, Sealed):
        return body.relayed(frame.id)
    if frame.model is not None or frame.session or frame.cost is not None:
        return _encode(frame.id, body, frame.model, frame.session, frame.cost)
    return _encode(frame.id, body)


def _encode(ident: int, body: Body, *call: object) -> bytes:
    """See `encode`; `call` holds the fields that only calls have."""
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
    """Check, before the work is done, that an answer of `count` parts of `each_bytes` fits into a
    frame.

    Raises:
        LimitExceeded: it does not fit, because of the number of items or the length of the text in
            `param`.
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
    """The frame of an answer; an answer that cannot be sent becomes a `Failed` with the reason."""
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
    """The frame with `content`, its body not decoded. Raises `WireError`.

    Args:
        head: part and id, as in the frame.
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
    """The frame of `sealed` with its body decoded. Raises `WireError`."""
    return Frame(sealed.id, sealed.open(), sealed.model, sealed.session, sealed.cost)


def _too_large(size: int, kind: str = "") -> FrameTooLarge:
    return FrameTooLarge(f"a {kind}frame of {size:,} bytes exceeds {MAX_FRAME_BYTES:,}")


async def sealed_frames(reader: asyncio.StreamReader) -> AsyncGenerator[list[Sealed], None]:
    """The frames that `reader` receives, up to a clean end of the connection. Frames that arrive
    together, such as those of one step of a model, are yielded as one list, because waiting for
    each frame costs as much as relaying it.

    Raises:
        WireError: a frame is malformed or too large, or the connection ended inside one; the frames
            before it have been yielded.
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
    """Append the complete frames at the beginning of `data` to `frames`. Returns where the last one
    ends, and how many bytes from there on the next frame has, or only its head if that is not
    complete. Raises `WireError`.
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
    """The next frame of a blocking stream, buffered or not; None at a clean end of the stream. A
    body that cannot be decoded is replaced by the `Failed` that answers it, because the next frame
    can be read.

    Raises `WireError`.
    """
    head = _read(stream, _HEAD_BYTES)
    if not head:
        return None
    size, ident = _HEAD.unpack(head)
    if size > MAX_FRAME_BYTES:
        raise _too_large(size)
    sealed = _sealed(ident, _read(stream, size))
    try:
        return opened(sealed)
    except WireError as error:
        return Frame(sealed.id, unreadable(error))


def _read(stream: BinaryIO, count: int) -> bytes:
    """`count` bytes; none if the stream ends where a head would begin. Raises `WireError` if it
    ends anywhere else.
    """
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
