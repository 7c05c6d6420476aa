"""The same question in the format of every family of endpoints, whole and as a stream, sent by the
usual clients, and to the engine itself, which gives the token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hearth.backends.contract.events import (
    ChoiceFinished,
    Failed,
    Finished,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Constraint, Request, Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.host.client import HostClient
from served import Served

Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A question; greedy by default."""

    model: str
    text: str = "What is a token?"
    max_tokens: int = 48
    stop: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    required: bool = False
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    n: int = 1
    logprobs: bool = False
    temperature: float = 0.0
    seed: int = 0

    @property
    def messages(self) -> list[Json]:
        return [{"role": "user", "content": self.text}]

    def request(self, *, chat: bool) -> Request:
        """The question as a `Request` of the contract."""
        schema = None if self.schema is None else Constraint("json_schema", json.dumps(self.schema))
        return Request(
            **({"messages": (Message("user", self.text),)} if chat else {"text": self.text}),
            sampling=SamplingParams(
                temperature=self.temperature,
                seed=self.seed,
                logprobs=0 if self.logprobs else None,
            ),
            max_tokens=self.max_tokens,
            stop=self.stop,
            n=self.n,
            constraint=schema,
            tools=self.tools,
            tool_choice="required" if self.required else "auto",
            parallel_tool_calls=self.parallel,
        )


@dataclass
class Said:
    """One choice; its finish reason is named as in the contract."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""
    reason: str = ""
    tokens: list[str] = field(default_factory=list)
    """Only where log probabilities are requested."""
    logprobs: list[float] = field(default_factory=list, compare=False)
    """Log probabilities of the tokens; they change slightly if tokens come from the cache."""

    def add_tokens(self, tokens: Iterable[tuple[str, float]]) -> None:
        for text, logprob in tokens:
            self.tokens.append(text)
            self.logprobs.append(logprob)

    def add_call(self, position: int, name: str | None, arguments: str | None) -> None:
        if position == len(self.calls):
            self.calls.append(("", ""))
        known, written = self.calls[position]
        self.calls[position] = known + (name or ""), written + (arguments or "")


@dataclass
class Answer:
    """All choices, and the reported numbers of tokens."""

    choices: list[Said]
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    """None: this family does not report it."""


Ask = Callable[[Served, Question], Answer]


@dataclass(frozen=True)
class Family:
    """One family of endpoints."""

    whole: Ask
    streamed: Ask
    chat: bool = True
    """It has a chat template, reasoning and tools."""
    choices: bool = False
    logprobs: bool = False
    schemas: bool = True
    required: bool = True
    exact_arguments: bool = True
    """Whole answers have the arguments of calls exactly as generated, not as objects."""


FromEngine = tuple[Answer, list[list[int]], list[str]]
"""The answer, the ids of each choice, and their text with control tokens written out."""


async def from_engine(served: Served, question: Question, *, chat: bool) -> FromEngine:
    """The output of the model's engine."""
    async with HostClient.attach(served.place, start=False) as host:
        backend = host.backend(served.spec(question.model))
        said = [Said() for _ in range(question.n)]
        ids: list[list[int]] = [[] for _ in said]
        usage = Usage()
        async for event in backend.generate(question.request(chat=chat)):
            assert not isinstance(event, Failed), event
            if isinstance(event, Token):
                one = said[event.index]
                if event.channel == "reasoning":
                    one.reasoning += event.text
                else:
                    one.content += event.text
                one.add_tokens((token.text, token.logprob) for token in event.logprobs or ())
                ids[event.index] += event.ids
            elif isinstance(event, ToolCallPart):
                said[event.index].add_call(event.position, event.name, event.arguments)
                ids[event.index] += event.ids
            elif isinstance(event, ChoiceFinished):
                said[event.index].reason = event.reason
            elif isinstance(event, Finished):
                usage = event.usage
                if question.n == 1:
                    said[0].reason = event.reason
        texts = [await backend.detokenize(each) if each else "" for each in ids]
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return Answer(said, prompt, completion, usage.reasoning_tokens), ids, texts
