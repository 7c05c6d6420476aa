"""The reducer of event streams: folds the events of a request into its answer. All front ends use
it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, cast

from hearth.app.overflow import Overflow, newest_turns
from hearth.backends.contract.events import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    FinishReason,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.messages import ToolCall
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ErrorInfo, InternalError, PromptTooLong, from_info

PartKind = Literal["content", "reasoning", "call"]


class Generates(Protocol):
    """A source of the events of requests, such as a `Backend`."""

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """Yield the events of one request; closing the iterator cancels the request."""
        ...


@dataclass(slots=True)
class Part:
    """Consecutive text of one kind, or a tool call (its text is then the call's arguments).

    Attributes:
        id, name: the tool call's id and function name.
    """

    kind: PartKind
    id: str = ""
    name: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text received so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


@dataclass(slots=True)
class Choice:
    """One choice of an answer, as far as it has been generated.

    Attributes:
        parts: in the order in which they were generated.
        ids: of all its tokens.
        reason: why it ended; empty until then.
        gap_s: seconds between its last two token events; None if there were fewer than two.
    """

    index: int = 0
    reason: FinishReason | Literal[""] = ""
    stop: str | None = None
    parts: list[Part] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    gap_s: float | None = None
    _calls: dict[int, Part] = field(default_factory=dict)
    _last_s: float | None = None

    @property
    def content(self) -> str:
        """The text of the answer."""
        return self._text("content")

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer."""
        return self._text("reasoning")

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls."""
        calls = (part for part in self.parts if part.kind == "call")
        return tuple(ToolCall(part.id, part.name, part.text) for part in calls)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Log probabilities of the tokens of the content."""
        texts = (part for part in self.parts if part.kind == "content")
        return [token for part in texts for token in part.logprobs]

    def add(self, event: Token | ToolCallPart, now_s: float) -> None:
        """Add text, or a piece of a tool call, that arrived at `now_s`."""
        if self._last_s is not None:
            self.gap_s = now_s - self._last_s
        self._last_s = now_s
        if event.ids:
            self.ids += event.ids
        if isinstance(event, Token):
            text, logprobs = event.text, event.logprobs
            if not text and not logprobs:
                return
            part = self.parts[-1] if self.parts else None
            if part is None or part.kind != event.channel:
                part = Part(event.channel)
                self.parts.append(part)
            part.pieces.append(text)
            if logprobs:
                part.logprobs += logprobs
        else:
            if event.position not in self._calls:
                self._calls[event.position] = Part("call", event.id, event.name)
                self.parts.append(self._calls[event.position])
            self._calls[event.position].pieces.append(event.arguments)

    def _text(self, kind: PartKind) -> str:
        texts = [part.text for part in self.parts if part.kind == kind]
        return texts[0] if len(texts) == 1 else "".join(texts)


class Answer:
    """The answer to a request, as far as its events have arrived.

    Args:
        choices: `Request.n`.
        position: index of the request among those answered together.
        notices: placed before the notices of the events.
        clock: a monotonic clock, in seconds.

    Attributes:
        choices: each is complete once its `reason` is set.
        dropped: number of messages at the beginning of the conversation, not counting system
            messages, that were left out of the prompt.
        last: the choice that ended last.
        tokens: completion tokens received.
        request: the request that `follow` sent last, without the messages that were left out.
        reason: why the answer ended; empty until then.
        began_s, first_s, last_s: when the request was sent, and when its first and last tokens
            arrived, by `clock`.
    """

    def __init__(
        self,
        choices: int = 1,
        position: int = 0,
        notices: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.choices = [Choice(index) for index in range(choices)]
        self.last = self.choices[0]
        self.position = position
        self.dropped = 0
        self.started = Started(0)
        self.finished: Finished | None = None
        self.error: ErrorInfo | None = None
        self.reason: FinishReason | Literal["", "error"] = ""
        self.tokens = 0
        self.request: Request | None = None
        self.clock = clock
        self.began_s = clock()
        self.first_s: float | None = None
        self.last_s = self.began_s
        self._overflow = ""
        self._notices = dict.fromkeys(notices)

    def add(self, event: Event) -> None:
        """Add the next event of the stream."""
        if isinstance(event, (Token, ToolCallPart)):
            now_s = self.last_s = self.clock()
            self.choices[event.index].add(event, now_s)
            self.tokens += len(event.ids)
            if self.first_s is None:
                self.first_s = now_s
        elif isinstance(event, Started):
            self.started = event
            self._notices.update(dict.fromkeys(event.notices))
        elif isinstance(event, ChoiceFinished):
            self._end(event.index, event.reason, event.stop)
        elif isinstance(event, Finished):
            self.finished, self.reason = event, event.reason
            self._notices.update(dict.fromkeys(event.notices))
            if len(self.choices) == 1:
                self._end(0, event.reason, event.stop)
        elif isinstance(event, Failed):
            self.error, self.reason = event.error, "error"

    def _end(self, index: int, reason: FinishReason, stop: str | None) -> None:
        self.last = self.choices[index]
        self.last.reason, self.last.stop = reason, stop

    async def follow(
        self, backend: Generates, request: Request, overflow: Overflow = "refuse"
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of `request`, each after adding it. Closing the iterator cancels the
        request.

        Args:
            overflow: what to do with a conversation that exceeds the context. drop-turns: leave
                out its oldest turns and add a notice.

        Raises:
            HearthError: the error of a `Failed` event.
            PromptTooLong: the prompt exceeds the context and nothing may be left out, or the last
                turn alone exceeds it.
            InternalError: the stream ended without a final event.
        """
        while True:
            self.began_s = self.clock()
            self.error, self.reason, self.request = None, "", request
            generated = cast(AsyncGenerator[Event, None], backend.generate(request))
            # No generators beyond these: each costs time for every token.
            try:
                async with aclosing(generated) as events:
                    async for event in events:
                        self.add(event)
                        if self.error is not None:
                            raise from_info(self.error)
                        yield event
                        if self.finished is not None:
                            return
                raise InternalError("The event stream ended without a final event.")
            except PromptTooLong as error:
                messages = request.messages or ()
                kept = newest_turns(messages, error) if overflow == "drop-turns" else None
                if kept is None:
                    raise
                self._drop(len(messages) - len(kept), error)
                request = replace(request, messages=kept)

    def _drop(self, messages: int, error: PromptTooLong) -> None:
        if not self.dropped:
            self._overflow = error.message
        self._notices.pop(self.overflow_notice, None)
        self.dropped += messages
        self._notices[self.overflow_notice] = None

    @property
    def overflow_notice(self) -> str:
        """The notice that messages were left out of the prompt, also in `notices`; empty if none
        were.
        """
        if not self.dropped:
            return ""
        what = "oldest message is" if self.dropped == 1 else f"{self.dropped} oldest messages are"
        return f"{self._overflow} The {what} left out of it."

    @property
    def content(self) -> str:
        """The text of the first choice."""
        return self.choices[0].content

    @property
    def reasoning(self) -> str:
        """The reasoning of the first choice."""
        return self.choices[0].reasoning

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the first choice."""
        return self.choices[0].calls

    @property
    def notices(self) -> list[str]:
        """What the user should know about the answer, each notice once."""
        return list(self._notices)

    @property
    def usage(self) -> Usage:
        """Token counts so far; the worker's own counts once the answer is complete."""
        if self.finished is not None:
            return self.finished.usage
        return Usage(self.started.prompt_tokens, self.started.cached_tokens, self.tokens)

    @property
    def timings(self) -> Timings:
        """The worker's measurements; all 0 until the answer is complete."""
        return Timings() if self.finished is None else self.finished.timings


def total_usage(answers: Iterable[Answer]) -> Usage:
    """The summed token counts of all `answers`."""
    used = [answer.usage for answer in answers]
    return Usage(
        sum(usage.prompt_tokens for usage in used),
        sum(usage.cached_tokens for usage in used),
        sum(usage.completion_tokens for usage in used),
        sum(usage.reasoning_tokens for usage in used),
        sum(usage.kept_tokens for usage in used),
    )
