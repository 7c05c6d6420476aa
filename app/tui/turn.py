"""One answer, from the request to its end: loading, prefill, generating; kept as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, cast

from hearth.app.chats.tree import ChatMessage
from hearth.app.tui.count import Count
from hearth.app.tui.happenings import Calls, Ended, Moved, Noticed, Piece
from hearth.app.tui.request import message_of
from hearth.app.tui.services import Services
from hearth.backends.contract import (
    Backend,
    Event,
    Failed,
    Finished,
    Message,
    Progress,
    Request,
    Started,
    Token,
    ToolCall,
    ToolCallPart,
)
from hearth.backends.errors import HearthError, InternalError, PromptTooLong, from_info

if TYPE_CHECKING:
    from hearth.app.tui.session import ChatSession, Live

_SAVE_EVERY_S: Final = 0.5
"""At most so much of an answer is lost with the machine."""

State = Literal["complete", "stopped", "failed"]


class Turn:
    """Runs one answer.

    Args:
        session: whose answer it is; told what happens.
        messages: what comes before the answer.
        live: the answer, filled while it comes; not empty where one is continued.
    """

    def __init__(
        self, session: ChatSession, services: Services, messages: list[ChatMessage], live: Live
    ) -> None:
        self._session = session
        self._services = services
        self._messages = messages
        self._live = live
        self._stopping = asyncio.Event()
        self._saved = (live.content, live.reasoning)
        self._count = Count()

    def stop(self) -> None:
        """End it; what came stays."""
        self._stopping.set()

    async def run(self) -> None:
        """To its end, which is kept whatever happens.

        Raises:
            HearthError: why it failed; that is in the store as well.
        """
        state: State = "failed"
        reason, why = "", "The app was closed."
        failure: HearthError | None = None
        saving = asyncio.create_task(self._save_on())
        try:
            reason = await self._until_stopped()
            state = "stopped" if reason == "cancelled" else "complete"
            why = ""
        except HearthError as error:
            why, failure = error.message, error
        except Exception as error:  # noqa: BLE001 - a defect of ours must not lose the answer
            failure = InternalError(f"The answer failed: {type(error).__name__}: {error}")
            why = failure.message
        finally:
            saving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saving
            await self._end(state, reason, why)
        if failure is not None:
            raise failure

    async def _until_stopped(self) -> str:
        """The reason of the end; "cancelled" where somebody stopped it."""
        stopping = asyncio.create_task(self._stopping.wait())
        answering = asyncio.create_task(self._answer())
        try:
            await asyncio.wait([stopping, answering], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            return "cancelled"
        finally:
            for task in (stopping, answering):
                task.cancel()
            await asyncio.wait([stopping, answering])

    async def _answer(self) -> str:
        self._session.tell(Moved("loading"))
        while True:
            first = self._session.left_out
            asking = await self._session.asking(self._messages[first:])
            request = asking.request
            if self._live.content or self._live.reasoning:
                request = self._continuing(request)
            self._count.model = asking.info.name
            self._count.quantization = asking.info.quantization
            try:
                return await self._stream(asking.backend, request)
            except PromptTooLong as error:
                if not self._leave_out():
                    raise
                self._session.tell(
                    Noticed(f"{error.message} The oldest turn is left out from now on.", "warning")
                )

    def _continuing(self, request: Request) -> Request:
        begun = Message("assistant", self._live.content, self._live.reasoning)
        return replace(request, messages=(*(request.messages or ()), begun), continue_last=True)

    def _leave_out(self) -> bool:
        """Leave the oldest question and its answers out; False if it is the last."""
        first = self._session.left_out
        for index in range(first + 1, len(self._messages)):
            if message_of(self._messages[index]).role == "user":
                self._session.left_out = index
                return True
        return False

    async def _stream(self, backend: Backend, request: Request) -> str:
        generated = cast("AsyncGenerator[Event, None]", backend.generate(request))
        self._count.began_s = time.monotonic()
        async with contextlib.aclosing(generated) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise from_info(event.error)
                if isinstance(event, Finished):
                    self._count.finished = event
                    for notice in event.notices:
                        self._session.tell(Noticed(notice))
                    return event.reason
                self._take(event)
        raise InternalError("A stream ended without a last event.")

    def _take(self, event: Event) -> None:
        live, session = self._live, self._session
        if isinstance(event, Token):
            self._count.tokens(len(event.ids))
            if session.state != "generating":
                session.tell(Moved("generating"))
            if event.channel == "reasoning":
                live.reasoning += event.text
            else:
                live.content += event.text
            if event.text:
                session.tell(Piece(live.id, event.text, event.channel))
        elif isinstance(event, ToolCallPart):
            self._count.tokens(len(event.ids))
            live.calls = with_part(live.calls, event)
            session.tell(Calls(live.id, live.calls))
        elif isinstance(event, Started):
            self._count.started = event
            session.tell(Moved("prefill", event.cached_tokens, event.prompt_tokens))
            for notice in event.notices:
                session.tell(Noticed(notice))
        elif isinstance(event, Progress):
            session.tell(Moved("prefill", event.done, event.total, self._left_s(event)))

    def _left_s(self, event: Progress) -> float | None:
        computed = event.done - self._count.started.cached_tokens
        took_s = time.monotonic() - self._count.began_s
        return took_s * (event.total - event.done) / computed if computed > 0 else None

    async def _save_on(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            live = self._live
            now = (live.content, live.reasoning)
            if now == self._saved:
                continue
            try:
                await asyncio.to_thread(self._services.chats.save_answer, live.id, *now, live.calls)
                self._saved = now
            except HearthError as error:  # Such as a full disk: the next try may find room.
                self._session.tell(Noticed(f"Not kept yet: {error.message}", "error"))

    async def _end(self, state: State, reason: str, why: str) -> None:
        live = self._live
        await asyncio.to_thread(
            lambda: self._services.chats.end_answer(
                live.id,
                live.content,
                live.reasoning,
                live.calls,
                state=state,
                finish_reason=reason,
                error=why,
                numbers=self._count.numbers(),
            )
        )
        self._session.tell(Ended(live.id))


def with_part(calls: tuple[ToolCall, ...], part: ToolCallPart) -> tuple[ToolCall, ...]:
    """`calls` with one more piece."""
    if part.position == len(calls):
        return (*calls, ToolCall(part.id, part.name, part.arguments))
    grown = calls[part.position]
    grown = ToolCall(grown.id, grown.name, grown.arguments + part.arguments)
    return (*calls[: part.position], grown, *calls[part.position + 1 :])
