"""Converts messages of the store to what the transcript shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from hearth.app import guide_pages
from hearth.app.chats.tree import ChatMessage, Numbers
from hearth.app.session.sessions import ChatSession
from hearth.app.tui.attachments import split
from hearth.app.tui.widgets.message import Shown

_JSON = ("json", "json_schema")
_BEGINS = ("{", "[")
_REASONS = {"length": "The answer was cut: it reached the limit of tokens."}
_LEFT_OUT = "The context is full: the messages up to here are left out of the prompt."
_split = lru_cache(maxsize=64)(split)  # It scans whole texts, at every change of a chat.


def shown_of(session: ChatSession) -> list[Shown]:
    """The branch that `session` shows, including the answer in progress so far."""
    wants_json = (session.thread.settings.get("constraint") or {}).get("kind") in _JSON
    live = session.live
    branch = [
        shown(
            replace(
                one,
                content=live.content,
                reasoning=live.reasoning,
                state="streaming",
                finish_reason="",
            )
            if live is not None and one.id == live.id
            else one,
            wants_json=wants_json,
        )
        for one in session.messages
    ]
    if session.left_out:
        last = branch[session.left_out - 1]
        branch[session.left_out - 1] = replace(last, note=f"{last.note}\n{_LEFT_OUT}".strip())
    return list(_with_pages(session.messages, branch)) if guide_pages.is_loaded() else branch


def _with_pages(messages: Iterable[ChatMessage], branch: Iterable[Shown]) -> Iterator[Shown]:
    """`branch`, with the page that an answer of the guide comes from added below its numbers."""
    question = ""
    for message, one in zip(messages, branch, strict=True):
        if one.role == "user":
            question = one.content
        is_guide = message.numbers is not None and message.numbers.model == "guide"
        page = guide_pages.page_for(question) if is_guide and one.numbers else ""
        yield (
            replace(one, numbers=f"{one.numbers}\n{guide_pages.page_location(page)}")
            if page
            else one
        )


def shown(message: ChatMessage, *, wants_json: bool = False) -> Shown:
    """One message as shown; `wants_json` means that its chat asks for JSON."""
    siblings = message.siblings or (message.id,)
    is_user = message.role == "user"
    content, files = _split(message.content) if is_user else (message.content, ())
    return Shown(
        id=message.id,
        role=message.role,
        content=content,
        reasoning=message.reasoning,
        files=files,
        calls=message.tool_calls,
        is_json=message.role == "assistant" and _is_json(content, begins=wants_json),
        state=message.state,
        note=note_of(message),
        numbers=line_of(message.numbers),
        sibling=siblings.index(message.id) + 1,
        siblings=len(siblings),
        model=_model_of(message.numbers),
    )


def _model_of(numbers: Numbers | None) -> str:
    """Name and quantization of a model; empty if unknown."""
    name, quantization = (numbers.model, numbers.quantization) if numbers else ("", "")
    return name if quantization in name else f"{name} {quantization}".strip()


def _is_json(text: str, *, begins: bool) -> bool:
    """Whether `text` is a JSON object or array; with `begins`, whether it may begin one."""
    begun = text.lstrip()[:1]
    if begun not in _BEGINS:
        return begins and not begun
    if begins:
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def note_of(message: ChatMessage) -> str:
    """Why the message is incomplete; empty if it is complete."""
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
    return " · ".join(parts)
