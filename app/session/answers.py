"""The answer of a chat while it is generated."""

from __future__ import annotations

from dataclasses import replace

from hearth.app.answer import Answer, Part
from hearth.app.chats.tree import ChatMessage, EndState, Numbers
from hearth.backends.contract import ModelInfo, Request


class StreamingAnswer(Answer):
    """An answer that becomes a message of a chat.

    Args:
        begun: the message; what it contains is continued.

    Attributes:
        info: of the model that generates it.
        request: what the model was asked.
    """

    def __init__(self, begun: ChatMessage) -> None:
        super().__init__()
        self._begun = begun
        self.info: ModelInfo | None = None
        self.request: Request | None = None
        parts = self.choices[0].parts
        if begun.reasoning:
            parts.append(Part("reasoning", pieces=[begun.reasoning]))
        if begun.content:
            parts.append(Part("content", pieces=[begun.content]))
        for call in begun.tool_calls:
            parts.append(Part("call", call.id, call.name, pieces=[call.arguments]))

    @property
    def id(self) -> str:
        """Of the message."""
        return self._begun.id

    def message(self, state: EndState, error: str = "") -> ChatMessage:
        """The message, ended in `state`."""
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
        """What was measured so far: by the worker, once the answer is complete."""
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
