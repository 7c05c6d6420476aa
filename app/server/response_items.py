"""Builds the output items of `/v1/responses` and the events that report them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from hearth.app.answer import Part
from hearth.app.server.answers import chat_logprobs
from hearth.app.server.responses_request import Names
from hearth.backends.contract import Token, ToolCallPart

Json = dict[str, Any]
Named = Iterator[tuple[str, Json]]
"""Events: (name, fields)."""


class Items:
    """The items of one response, one for each part of the answer, and the events that report them.

    Args:
        names: the client's names of its functions.

    Attributes:
        done: the items that are complete.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.done: list[Json] = []
        self._open: Json | None = None

    def add(self, parts: Sequence[Part], event: Token | ToolCallPart) -> Named:
        """Report `event`, the last that was added to `parts`."""
        if len(parts) > len(self.done) + (self._open is not None):
            yield from self.close(parts, "completed")
            yield from self._begin(parts[-1])
        if isinstance(event, ToolCallPart):
            if event.arguments:
                yield self._item("response.function_call_arguments.delta", delta=event.arguments)
        elif event.channel == "reasoning":
            if event.text or event.logprobs:
                yield self._part("response.reasoning_text.delta", delta=event.text)
        elif event.text or event.logprobs:
            logprobs = chat_logprobs(event.logprobs or ())["content"]
            yield self._part("response.output_text.delta", delta=event.text, logprobs=logprobs)

    def close(self, parts: Sequence[Part], status: str) -> Named:
        """Close the open item, if any, as completed or incomplete."""
        item = self._open
        if item is None:
            return
        part = parts[len(self.done)]
        item["status"] = status
        if part.kind == "call":
            item["arguments"] = part.text
            yield self._item("response.function_call_arguments.done", arguments=part.text)
        elif part.kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": part.text}]
            yield self._part("response.reasoning_text.done", text=part.text)
        else:
            text = _text(part)
            item["content"] = [text]
            fields = {"text": text["text"], "logprobs": text["logprobs"]}
            yield self._part("response.output_text.done", **fields)
            yield self._part("response.content_part.done", part=text)
        yield "response.output_item.done", {"output_index": len(self.done), "item": item}
        self.done.append(item)
        self._open = None

    def _begin(self, part: Part) -> Named:
        if part.kind == "call":
            named = self._names.of_client(part.name)
            kind, prefix = "function_call", "fc"
            fields: Json = {"call_id": part.id, **named, "arguments": ""}
        elif part.kind == "reasoning":
            kind, prefix, fields = "reasoning", "rs", {"summary": [], "content": []}
        else:
            kind, prefix, fields = "message", "msg", {"role": "assistant", "content": []}
        ident = f"{prefix}_{secrets.token_hex(12)}"
        self._open = {"id": ident, "type": kind, "status": "in_progress", **fields}
        fields = {"output_index": len(self.done), "item": dict(self._open)}
        yield "response.output_item.added", fields
        if part.kind == "content":
            yield self._part("response.content_part.added", part=_text(Part("content")))

    def _item(self, name: str, **fields: Any) -> tuple[str, Json]:
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self.done)}
        return name, {**where, **fields}

    def _part(self, name: str, **fields: Any) -> tuple[str, Json]:
        return self._item(name, content_index=0, **fields)


def _text(part: Part) -> Json:
    logprobs = chat_logprobs(part.logprobs)["content"]
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}
