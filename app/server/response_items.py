"""Builds the output items of `/v1/responses` and the events that report them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from hearth.app.server.answers import chat_logprobs
from hearth.app.server.responses_request import Names
from hearth.backends.contract import Token, ToolCallPart

Json = dict[str, Any]
Named = Iterator[tuple[str, Json]]
"""Events: (name, fields)."""


class Items:
    """The items of one response, and the events that report them.

    Args:
        names: the client's names of its functions.

    Attributes:
        done: the items that are complete.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.done: list[Json] = []
        self._open: Json | None = None
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def token(self, event: Token) -> Named:
        """More of the answer or of the reasoning."""
        if event.channel == "reasoning":
            if self._kind != "reasoning":
                yield from self._begin("reasoning", "rs", {"summary": [], "content": []})
            self._pieces.append(event.text)
            yield self._part("response.reasoning_text.delta", delta=event.text)
            return
        if self._kind != "message":
            yield from self._begin("message", "msg", {"role": "assistant", "content": []})
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._part("response.content_part.added", part=part)
        logprobs = chat_logprobs(event.logprobs)["content"] if event.logprobs else []
        self._pieces.append(event.text)
        self._logprobs += logprobs
        yield self._part("response.output_text.delta", delta=event.text, logprobs=logprobs)

    def call(self, event: ToolCallPart) -> Named:
        """A piece of a call."""
        if event.name:
            named = self._names.of_client(event.name)
            fields = {"call_id": event.id, **named, "arguments": ""}
            yield from self._begin("function_call", "fc", fields)
        if event.arguments:
            self._pieces.append(event.arguments)
            yield self._item("response.function_call_arguments.delta", delta=event.arguments)

    def close(self, status: str) -> Named:
        """Close the open item, if any, as completed or incomplete."""
        item = self._open
        if item is None:
            return
        text = "".join(self._pieces)
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._item("response.function_call_arguments.done", arguments=text)
        elif item["type"] == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            yield self._part("response.reasoning_text.done", text=text)
        else:
            part = {
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": self._logprobs,
            }
            item["content"] = [part]
            yield self._part("response.output_text.done", text=text, logprobs=self._logprobs)
            yield self._part("response.content_part.done", part=part)
        yield "response.output_item.done", {"output_index": len(self.done), "item": item}
        self.done.append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    @property
    def _kind(self) -> str:
        return "" if self._open is None else str(self._open["type"])

    def _begin(self, kind: str, prefix: str, fields: Json) -> Named:
        yield from self.close("completed")
        ident = f"{prefix}_{secrets.token_hex(12)}"
        self._open = {"id": ident, "type": kind, "status": "in_progress", **fields}
        fields = {"output_index": len(self.done), "item": dict(self._open)}
        yield "response.output_item.added", fields

    def _item(self, name: str, **fields: Any) -> tuple[str, Json]:
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self.done)}
        return name, {**where, **fields}

    def _part(self, name: str, **fields: Any) -> tuple[str, Json]:
        return self._item(name, content_index=0, **fields)
