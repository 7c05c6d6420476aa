"""What is asked of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hearth.backends.contract.messages import Message
from hearth.backends.contract.sampling import SamplingParams, Speculate, SpeculateRule

Pooling = Literal["model", "mean", "last", "cls"]
ToolChoice = Literal["auto", "none", "required"]
EarlyStopping = bool | Literal["never"]
ConstraintKind = Literal["json", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to be called."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments; empty: none are declared."""
    strict: bool = False
    """Arguments must follow the schema: what would not is never drawn."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer must look like, from its first character (after the reasoning, where a model
    thinks) to its last.
    """

    kind: ConstraintKind
    source: str = ""
    """json_schema: the schema as JSON. regex: the pattern. choice: a JSON array of strings.
    grammar: a grammar in llama.cpp's GBNF, which starts with its rule `root`.
    """


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The answer is searched for, not drawn: of `width` hypotheses that are continued together, the
    likeliest are returned. The rules are those of transformers.
    """

    width: int
    """Hypotheses, in [1, 16]; no fewer than answers."""
    length_penalty: float = 1.0
    """Complete hypotheses are ranked by the sum of their tokens' log probabilities over their
    length to this power, in [-10, 10]: more prefers longer ones.
    """
    early_stopping: EarlyStopping = False
    """True: the search ends with as many complete hypotheses as `width`. False: when none that goes
    on, at its present length, is better than these; "never": at no length that it may reach.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asked: exactly one of `messages`, `text` and `token_ids`.

    `messages` go through the chat template; `text` is completed as it stands (special tokens in it
    are plain text); `token_ids` are used unchanged.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """At most this many new tokens, or as many as the context holds after the prompt. None: until
    the model ends or the context is full; with `attention_sinks` as many as the context holds.
    """
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    """The answer ends with the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    """The answer ends with the first of these tokens, also with `ignore_eos`."""
    include_stop: bool = False
    """The stop string or the token of `stop_token_ids` is the last part of the text. False: it is
    left out. End-of-generation tokens of the model are always left out.
    """
    skip_special_tokens: bool = True
    """False: special tokens that the model writes are part of the text."""
    n: int = 1
    """Answers to the same prompt, in [1, 16]; the prompt is computed once. Choice 0 draws with
    `sampling.seed`, the others with seeds made from it.
    """
    beams: BeamSearch | None = None
    """Search for the likeliest answers; None: draw them."""
    priority: int = 0
    """In [-100, 100]. Higher goes first among those that wait, and may put lower ones aside."""
    session: str = ""
    """Whom the request is for: sessions take turns where requests must wait. Empty: the front end
    that sent it.
    """
    constraint: Constraint | None = None
    tools: tuple[Tool, ...] = ()
    """Only with `messages`."""
    tool_choice: ToolChoice = "auto"
    """none: the tools are not shown to the model. required: the answer is a call of one."""
    forced_tool: str = ""
    """With `tool_choice` "required": the tool that must be called, once."""
    parallel_tool_calls: bool = True
    """False: one call at most. True: with `tool_choice` "required" one or more."""
    template_values: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as {"enable_thinking": False}; JSON values."""
    continue_last: bool = False
    """The last message is the assistant's, and the answer goes on from its end."""
    add_generation_prompt: bool = True
    """False: `messages` are rendered without the beginning of an answer."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last tokens of the prompt, this many. -1: as many as fit, with `max_tokens` for
    the answer, or half of the context where that is less. None: a prompt that does not fit is
    refused.
    """
    attention_sinks: int | None = None
    """Where prompt and answer exceed the context, keep so many of the first tokens and the newest
    ones, and forget those between them (`engine/streaming.py`). None: the context is the limit.
    """
    suffix: str | None = None
    """With `text`: what comes after the text to be found (infill)."""
    reuse_prefix: bool = True
    """False: compute the whole prompt, also what is known from earlier ones."""
    speculate: Speculate | None = None
    """Changes how fast tokens come, not which (with `speculate_rule` "match"). None: as the model
    was loaded.
    """
    speculate_rule: SpeculateRule | None = None
    """Which guesses are kept. None: as the model was loaded."""

    @property
    def prompt_field(self) -> Literal["messages", "text", "token_ids"]:
        """The field that has the prompt."""
        if self.messages is not None:
            return "messages"
        return "token_ids" if self.text is None else "text"

    @property
    def one_call(self) -> bool:
        """At most one tool call is made; a forced tool is called exactly once."""
        return bool(self.forced_tool) or not self.parallel_tool_calls
