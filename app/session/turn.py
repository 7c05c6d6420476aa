"""One answer of a chat, from the request to its end: loading, prefill and generating. It is saved
at intervals meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from hearth.app.answer import Answer, Part
from hearth.app.chats.tree import ChatMessage, EndState, Numbers, Thread
from hearth.app.overflow import Overflow
from hearth.app.session.events import Changed, Moved, Noticed, Piece, SessionEvent
from hearth.app.settings import ModelUse
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import Event, Finished, Progress, Started, Token
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Constraint, Request
from hearth.backends.errors import HearthError, InternalError

if TYPE_CHECKING:
    from hearth.app.chats.store import ChatStore

_SEED_BITS: Final = 53  # so that every JSON reader keeps it exactly
_SAVE_EVERY_S: Final = 0.5
"""At most this much of an answer is lost if the machine fails."""


# ---- the request


def build(
    thread: Thread, messages: Sequence[ChatMessage], use: ModelUse, info: ModelInfo
) -> Request:
    """The request to the model of `info` for an answer to `messages`."""
    system = thread.system or use.system
    head = (Message("system", system),) if system else ()
    return Request(
        messages=(*head, *map(_message_of, _answered(messages))),
        sampling=replace(use.sampling, seed=reportable_seed(use)),
        max_tokens=use.max_tokens,
        attention_sinks=use.attention_sinks,
        stop=use.stop,
        session=thread.id,
        constraint=constraint_of(thread.settings),
        template_values=_template_values(thread.settings, info),
    )


def reportable_seed(use: ModelUse) -> int | None:
    """The seed of the settings, or a random one. None if a seed would not reproduce the text,
    because drafts are accepted by rejection sampling.
    """
    seed, load = use.sampling.seed, use.load
    if seed is not None or (load.speculate_rule == "rejection" and load.speculate != "off"):
        return seed
    return SystemRandom().getrandbits(_SEED_BITS)


def _message_of(kept: ChatMessage) -> Message:
    """A message of the store as a message of the contract."""
    reasoning = kept.reasoning if kept.role == "assistant" else ""
    calls = kept.tool_calls if kept.role == "assistant" else ()
    return Message(kept.role, kept.content, reasoning, calls)


def constraint_of(settings: dict[str, Any]) -> Constraint | None:
    """The constraint on the answers of a chat with these settings; None: free text."""
    wanted = settings.get("constraint")
    return None if not wanted else Constraint(wanted["kind"], wanted.get("source", ""))


def _answered(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """`messages` without the questions whose answers failed or were stopped before their first
    word, because most templates require an answer after each question.
    """
    sent: list[ChatMessage] = []
    for message in messages:
        if message.role != "assistant" or message.content or message.tool_calls:
            sent.append(message)
            continue
        while sent and sent[-1].role == "user":
            sent.pop()
    return sent


def _template_values(settings: dict[str, Any], info: ModelInfo) -> dict[str, Any]:
    thinking = settings.get("thinking")
    if thinking is None or "thinking" not in info.capabilities:
        return {}
    return {"enable_thinking": bool(thinking)}


# ---- the answer


class StreamingAnswer(Answer):
    """An answer that becomes a message of a chat.

    Args:
        begun: the message; its content is continued.

    Attributes:
        id: of the message.
        info: describes the model that generates it.
    """

    def __init__(self, begun: ChatMessage) -> None:
        super().__init__()
        self._begun = begun
        self.id = begun.id
        self.info: ModelInfo | None = None
        parts = self.choices[0].parts
        if begun.reasoning:
            parts.append(Part("reasoning", pieces=[begun.reasoning]))
        if begun.content:
            parts.append(Part("content", pieces=[begun.content]))
        for call in begun.tool_calls:
            parts.append(Part("call", call.id, call.name, pieces=[call.arguments]))

    def message(self, state: EndState, error: str = "") -> ChatMessage:
        """The message with the end state `state`."""
        return replace(
            self._begun,
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=self.calls,
            state=state,
            finish_reason="" if self.reason == "error" else self.reason,
            error=error,
            numbers=self.numbers(),
        )

    def numbers(self) -> Numbers:
        """The measurements so far; those of the worker once the answer is complete."""
        usage, timings, begun = self.usage, self.timings, self._begun.numbers or Numbers()
        ttft_s, tok_per_s = timings.ttft_s, timings.decode_tok_per_s
        if self.finished is None and self.first_s is not None:
            lasted_s = self.last_s - self.first_s
            ttft_s = self.first_s - self.began_s
            tok_per_s = (self.tokens - 1) / lasted_s if lasted_s > 0 and self.tokens else 0.0
        return Numbers(
            ttft_s,
            tok_per_s,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            self.info.name if self.info else begun.model,
            self.info.quantization if self.info else begun.quantization,
        )


class Turn:
    """Runs one answer.

    Args:
        chats: stores the answer while it is generated, but not its end.
        answer: is filled while it is generated.
        messages: those before the answer; the first of them may be left out.
        ask: makes the request for an answer to given messages, and loads the model.
        emit: called with the events.

    Attributes:
        first: id of the first message that is sent; empty if all are sent.
        ended: the final message, once `run` has ended.
        failure: why the answer failed.
    """

    def __init__(
        self,
        chats: ChatStore,
        answer: StreamingAnswer,
        messages: Sequence[ChatMessage],
        first: str,
        ask: Callable[
            [Sequence[ChatMessage]], Awaitable[tuple[Request, ModelInfo, Backend, Overflow]]
        ],
        emit: Callable[[SessionEvent], None],
    ) -> None:
        self.answer = answer
        self.first = first
        self.ended = answer.message("failed", "The app was closed.")
        self.failure: HearthError | None = None
        self._chats = chats
        self._messages = messages
        self._ask = ask
        self._emit = emit
        self._stopping = asyncio.Event()
        self._saved = (answer.content, answer.reasoning)

    def stop(self) -> None:
        """End the answer; its text so far is kept."""
        self._stopping.set()

    async def run(self) -> None:
        """Generate the answer; returns when it has ended, in whatever way."""
        state: EndState = "failed"
        why = "The app was closed."
        saving = asyncio.create_task(self._save_on())
        try:
            await self._until_stopped()
            state = "stopped" if self.answer.reason == "cancelled" else "complete"
            why = ""
        except HearthError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - a bug in Hearth must not lose the answer
            self.failure = InternalError(f"The answer failed: {type(error).__name__}: {error}")
        finally:
            saving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saving
            if self.failure is not None:
                why = f"{self.failure.message} {self.failure.hint}".strip()
            self.ended = self.answer.message(state, why)

    async def _until_stopped(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        answering = asyncio.create_task(self._answer())
        try:
            await asyncio.wait([stopping, answering], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            else:
                self.answer.reason = "cancelled"
        finally:
            for task in (stopping, answering):
                task.cancel()
            await asyncio.wait([stopping, answering])

    async def _answer(self) -> None:
        self._emit(Moved("loading"))
        answer = self.answer
        sent = self._sent()
        request, answer.info, backend, overflow = await self._ask(sent)
        streams = request.attention_sinks is not None
        if self.first and (streams or overflow == "refuse"):  # Send what was left out before.
            self.first = ""
            sent = self._sent()
            request, *_ = await self._ask(sent)
        generated = answer.follow(backend, self._continuing(request), overflow)
        is_told = False
        async with contextlib.aclosing(generated) as events:
            async for event in events:
                if answer.dropped and not is_told:
                    is_told = True
                    others = [one for one in _answered(sent) if one.role != "system"]
                    self.first = others[answer.dropped].id
                    self._emit(Noticed(answer.overflow_notice, "warning"))
                    self._emit(Changed())
                self._report(event)

    def _sent(self) -> Sequence[ChatMessage]:
        """The messages from `first` on, and system messages; all if `first` is not among them."""
        ids = [message.id for message in self._messages]
        start = ids.index(self.first) if self.first in ids else 0
        return [
            message
            for at, message in enumerate(self._messages)
            if at >= start or message.role == "system"
        ]

    def _continuing(self, request: Request) -> Request:
        answer = self.answer
        if not (answer.content or answer.reasoning):
            return request
        begun = Message("assistant", answer.content, answer.reasoning)
        return replace(request, messages=(*(request.messages or ()), begun), continue_last=True)

    def _report(self, event: Event) -> None:
        answer, emit = self.answer, self._emit
        if isinstance(event, Token):
            if answer.choices[0].gap_s is None:
                emit(Moved("generating"))
            if event.text:
                emit(Piece(answer.id, event.text, event.channel))
        elif isinstance(event, Started):
            emit(Moved("prefill", event.cached_tokens, event.prompt_tokens))
        elif isinstance(event, Progress):
            emit(Moved("prefill", event.done, event.total, self._left_s(event)))
        if isinstance(event, Started | Finished):
            for notice in event.notices:
                emit(Noticed(notice))

    def _left_s(self, event: Progress) -> float | None:
        computed = event.done - self.answer.started.cached_tokens
        took_s = time.monotonic() - self.answer.began_s
        return took_s * (event.total - event.done) / computed if computed > 0 else None

    async def _save_on(self) -> None:
        answer, warned = self.answer, False
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            now = (answer.content, answer.reasoning)
            if now == self._saved:
                continue
            try:
                save = self._chats.save_answer
                await asyncio.to_thread(save, answer.id, *now, answer.calls)
                self._saved = now
            except HearthError as error:  # For example a full disk; the next attempt may succeed.
                if not warned:
                    self._emit(Noticed(f"The answer is not saved yet: {error.message}", "error"))
                warned = True
