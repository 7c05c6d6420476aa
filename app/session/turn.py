"""One answer, from the request to its end: loading, prefill, generating; saved meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, EndState
from hearth.app.session.answers import StreamingAnswer
from hearth.app.session.events import Moved, Noticed, Piece, SessionEvent
from hearth.app.session.request import Asking
from hearth.backends.contract import Event, Finished, Message, Progress, Request, Started, Token
from hearth.backends.errors import HearthError, InternalError, PromptTooLong

_SAVE_EVERY_S: Final = 0.5
"""At most this much of an answer is lost if the machine fails."""
_QUOTE_LENGTH: Final = 40


class Turn:
    """Runs one answer.

    Args:
        chats: stores the answer while it is generated, not its end.
        answer: to be filled.
        messages: those before the answer.
        left_out: number of first messages that are not sent.
        ask: makes the request for an answer to some messages, and loads the model.
        emit: gets the events.

    Attributes:
        ended: the message that the answer has become, once `run` has ended.
        failure: why it failed.
    """

    def __init__(
        self,
        chats: ChatStore,
        answer: StreamingAnswer,
        messages: Sequence[ChatMessage],
        left_out: int,
        ask: Callable[[Sequence[ChatMessage]], Awaitable[Asking]],
        emit: Callable[[SessionEvent], None],
    ) -> None:
        self.answer = answer
        self.left_out = left_out
        self.ended = answer.message("failed", "The app was closed.")
        self.failure: HearthError | None = None
        self._chats = chats
        self._messages = messages
        self._ask = ask
        self._emit = emit
        self._stopping = asyncio.Event()
        self._saved = (answer.content, answer.reasoning)

    def stop(self) -> None:
        """End the answer; its text so far stays."""
        self._stopping.set()

    async def run(self) -> None:
        """Generate the answer; returns at its end, whatever that is."""
        state: EndState = "failed"
        why = "The app was closed."
        saving = asyncio.create_task(self._save_on())
        try:
            await self._until_stopped()
            state = "stopped" if self.answer.reason == "cancelled" else "complete"
            why = ""
        except HearthError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - a defect of ours must not lose the answer
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
        while True:
            asking = await self._ask(self._messages[self.left_out :])
            answer.info, answer.request = asking.info, self._continuing(asking.request)
            try:
                generated = answer.follow(asking.backend, answer.request)
                async with contextlib.aclosing(generated) as events:
                    async for event in events:
                        self._report(event)
                return
            except PromptTooLong as error:
                left_out = self._leave_out()
                if not left_out:
                    raise
                words = " ".join(left_out.content.split())
                quote = words if len(words) <= _QUOTE_LENGTH else f"{words[: _QUOTE_LENGTH - 1]}…"
                notice = f'{error.message} The oldest turn is left out from now on: "{quote}".'
                self._emit(Noticed(notice, "warning"))

    def _continuing(self, request: Request) -> Request:
        answer = self.answer
        if not (answer.content or answer.reasoning):
            return request
        begun = Message("assistant", answer.content, answer.reasoning)
        return replace(request, messages=(*(request.messages or ()), begun), continue_last=True)

    def _leave_out(self) -> ChatMessage | None:
        """Leave the oldest question and its answers out, and return it; None if it is the last."""
        oldest = self.left_out
        for index in range(oldest + 1, len(self._messages)):
            if self._messages[index].role == "user":
                self.left_out = index
                return self._messages[oldest]
        return None

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
            except HearthError as error:  # Such as a full disk: the next attempt may succeed.
                if not warned:
                    self._emit(Noticed(f"The answer is not saved yet: {error.message}", "error"))
                warned = True
