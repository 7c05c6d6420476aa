"""A chat as a file: Markdown to read, JSON that `import_json` takes back."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from hearth.app.chats.imports import FORMAT, VERSION, import_json
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers

__all__ = ["import_json", "to_json", "to_markdown"]

_NAMES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def to_markdown(store: ChatStore, thread_id: str) -> str:
    """The shown branch, with its dates and numbers; thoughts are folded.

    The texts stand in it as they are: to print it to a terminal, pass it through `safe_text`.
    """
    thread = store.thread(thread_id)
    facts = [
        f"- Begun: {_when(thread.created_at)}",
        f"- Last change: {_when(thread.changed_at)}",
    ]
    if thread.model:
        facts.insert(0, f"- Model: {thread.model}")
    parts = [f"# {thread.title or 'Chat'}", "\n".join(facts)]
    if thread.system:
        parts += ["## System prompt", _closed(thread.system)]
    for message in store.path(thread_id):
        parts += _message(message)
    return "\n\n".join(parts) + "\n"


def to_json(store: ChatStore, thread_id: str) -> dict[str, Any]:
    """The whole tree as JSON values: {"format", "version", "thread", "messages"}, parents before
    children. Its fields are those of `Thread` and `ChatMessage`.
    """
    thread, tree = store.tree(thread_id)
    fields = asdict(thread)
    del fields["id"], fields["messages"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "thread": fields,
        "messages": [_plain(message) for message in tree],
    }


def _plain(message: ChatMessage) -> dict[str, Any]:
    fields = asdict(message)
    del fields["siblings"], fields["hash"]
    fields["tool_calls"] = list(fields["tool_calls"])
    return fields


def _message(message: ChatMessage) -> list[str]:
    parts = [f"## {_NAMES[message.role]}", f"*{_line(message)}*"]
    if message.reasoning:
        thoughts = _closed(re.sub("</(details|summary)", r"&lt;/\1", message.reasoning, flags=re.I))
        parts.append(f"<details>\n<summary>Thoughts</summary>\n\n{thoughts}\n\n</details>")
    if message.content:
        parts.append(_closed(message.content))
    for call in message.tool_calls:
        fence = "`" * (1 + max((len(run) for run in re.findall("`+", call.arguments)), default=2))
        parts.append(f"Tool call `{call.name}`:\n\n{fence}json\n{call.arguments}\n{fence}")
    return parts


def _line(message: ChatMessage) -> str:
    """Date, numbers, and how it ended if not well."""
    facts = [_when(message.created_at), *_facts(message.numbers)]
    if message.state != "complete":
        facts.append("still being written" if message.state == "streaming" else message.state)
    if message.error:
        facts.append(" ".join(message.error.split()))
    return " · ".join(facts)


def _facts(numbers: Numbers | None) -> list[str]:
    if numbers is None:
        return []
    facts = [" ".join(part for part in (numbers.model, numbers.quantization) if part)]
    if numbers.prompt_tokens:
        facts.append(f"{numbers.prompt_tokens} prompt tokens, {numbers.cached_tokens} cached")
    if numbers.completion_tokens:
        facts.append(f"{numbers.completion_tokens} tokens")
    if numbers.ttft_s:
        facts.append(f"first token after {numbers.ttft_s:.2f} s")
    if numbers.tok_per_s:
        facts.append(f"{numbers.tok_per_s:.1f} tok/s")
    return [fact for fact in facts if fact]


def _closed(text: str) -> str:
    """`text` with an end of the code block that it leaves open, so that what follows is none of
    it. Source: CommonMark 0.31.2, section 4.5.
    """
    opened = ""
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence is None:
            continue
        marks, rest = fence.groups()
        if not opened:
            opened = "" if marks[0] == "`" and "`" in rest else marks
        elif marks[0] == opened[0] and len(marks) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().isoformat(" ", "seconds")
