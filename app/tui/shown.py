"""From messages of the store to what the transcript shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hearth.app import guide_pages
from hearth.app.chats.tree import ChatMessage, Numbers
from hearth.app.session.sessions import ChatSession
from hearth.app.tui.widgets.message import Shown
from hearth.app.tui.widgets.tool_call import ShownCall
from hearth.backends.contract import ToolCall

_REASONS = {"length": "The answer was cut: it reached the limit of tokens."}


def shown_of(session: ChatSession) -> list[Shown]:
    """The branch that `session` shows, with the answer under way as far as it is there."""
    found = [shown(message) for message in session.messages]
    if guide_pages.is_loaded():
        found = list(_with_pages(found))
    live = session.live
    if live is not None:
        found = [
            replace(
                one,
                content=live.content,
                reasoning=live.reasoning,
                calls=calls_of(live.calls),
                state="streaming",
                note="",
            )
            if one.id == live.id
            else one
            for one in found
        ]
    return found


def _with_pages(messages: Iterable[Shown]) -> Iterator[Shown]:
    """`messages`, and below the numbers of an answer of guide the page that it comes from."""
    question = ""
    for one in messages:
        if one.role == "user":
            question = one.content
        page = guide_pages.page_for(question) if one.model == "guide" and one.numbers else ""
        yield (
            replace(one, numbers=f"{one.numbers}\n{guide_pages.page_location(page)}")
            if page
            else one
        )


def shown(message: ChatMessage) -> Shown:
    """One message."""
    siblings = message.siblings or (message.id,)
    return Shown(
        id=message.id,
        role=message.role,
        content=message.content,
        reasoning=message.reasoning,
        calls=calls_of(message.tool_calls),
        state=message.state,
        note=note_of(message),
        numbers=line_of(message.numbers),
        sibling=siblings.index(message.id) + 1,
        siblings=len(siblings),
        model=message.numbers.model if message.numbers is not None else "",
    )


def calls_of(calls: Iterable[ToolCall]) -> tuple[ShownCall, ...]:
    """Tool calls, to be shown and never run."""
    return tuple(ShownCall(call.name, call.arguments) for call in calls)


def note_of(message: ChatMessage) -> str:
    """Why the message is not whole; empty if it is."""
    if message.state == "failed":
        return message.error or "The answer failed."
    if message.state == "stopped":
        return "Stopped."
    return _REASONS.get(message.finish_reason, "")


def line_of(numbers: Numbers | None) -> str:
    """The numbers of an answer in one line."""
    if numbers is None or not numbers.completion_tokens:
        return ""
    parts = []
    if numbers.ttft_s:
        parts.append(f"first token {numbers.ttft_s:.2f} s")
    if numbers.tok_per_s:
        parts.append(f"{numbers.tok_per_s:.1f} tok/s")
    parts.append(f"{numbers.completion_tokens:,} tokens")
    if numbers.cached_tokens:
        parts.append(f"{numbers.cached_tokens:,} of {numbers.prompt_tokens:,} cached")
    parts.append(" ".join(filter(None, (numbers.model, numbers.quantization))))
    return " · ".join(filter(None, parts))
