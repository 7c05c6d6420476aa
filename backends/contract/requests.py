"""Requests to a model."""

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
    """JSON schema of the arguments; empty if none are declared."""
    strict: bool = False
    """Arguments must follow the schema: tokens that would violate it are never drawn."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form of the answer, from its first character (after the reasoning, if the model reasons)
    to its last.
    """

    kind: ConstraintKind
    source: str = ""
    """json_schema: the schema as JSON. regex: the pattern. choice: a JSON array of strings.
    grammar: a grammar in llama.cpp's GBNF, whose start rule is `root`.
    """


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The answer is searched for, not drawn: `width` hypotheses are continued together, and the
    likeliest are returned. The rules are those of transformers.
    """

    width: int
    """Number of hypotheses, in [1, 16]; at least the number of answers."""
    length_penalty: float = 1.0
    """Complete hypotheses are ranked by the sum of their tokens' log probabilities divided by their
    length to this power, in [-10, 10]: larger values prefer longer hypotheses.
    """
    early_stopping: EarlyStopping = False
    """When the search ends. True: once there are `width` complete hypotheses. False: once no
    unfinished hypothesis is better than these at its present length. "never": once none would be
    better at any length that it may reach.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """A request to generate, with exactly one of `messages`, `text` and `token_ids`.

    `messages` go through the chat template; `text` is completed as it is (special tokens in it are
    plain text); `token_ids` are used unchanged.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """Most new tokens, limited by what the context holds after the prompt. None: until the model
    ends the answer or the context is full; with `attention_sinks` as many tokens as the context
    holds.
    """
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    """The answer ends with the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    """The answer ends with the first of these tokens, also with `ignore_eos`."""
    include_stop: bool = False
    """True: the text includes the stop string or the token of `stop_token_ids` that ended it. The
    model's end-of-generation tokens are always left out.
    """
    skip_special_tokens: bool = True
    """False: special tokens that the model writes are part of the text."""
    n: int = 1
    """Number of answers to the same prompt, in [1, 16]; the prompt is computed once. Choice 0 draws
    with `sampling.seed`, the others with seeds derived from it.
    """
    beams: BeamSearch | None = None
    """Search for the likeliest answers; None: draw them."""
    priority: int = 0
    """In [-100, 100]. Among waiting requests the highest priority goes first, and may preempt
    running requests of lower priority.
    """
    session: str = ""
    """The session that the request belongs to: where requests must wait, sessions are served in
    turn. Empty: the front end that sent it.
    """
    constraint: Constraint | None = None
    tools: tuple[Tool, ...] = ()
    """Only with `messages`."""
    tool_choice: ToolChoice = "auto"
    """none: the tools are not shown to the model. required: the answer is a tool call."""
    forced_tool: str = ""
    """With `tool_choice` "required": the tool that must be called, exactly once."""
    parallel_tool_calls: bool = True
    """False: one call at most. True: any number, with `tool_choice` "required" one or more."""
    template_values: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as {"enable_thinking": False}; JSON values."""
    continue_last: bool = False
    """The last message is the assistant's, and the answer continues it."""
    add_generation_prompt: bool = True
    """False: `messages` are rendered without the beginning of an answer."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens from the end of the prompt. -1: as many as fit, with room left for
    `max_tokens` of the answer or half of the context, whichever is less. None: a prompt that does
    not fit is refused.
    """
    attention_sinks: int | None = None
    """If prompt and answer exceed the context, keep this many of the first tokens and the newest
    ones, and evict the tokens between them (`engine/streaming.py`). None: the context is the limit.
    """
    suffix: str | None = None
    """With `text`: the text that follows the gap to be filled (infill)."""
    reuse_prefix: bool = True
    """False: compute the whole prompt, even if the KV cache has a prefix of it."""
    speculate: Speculate | None = None
    """Changes how fast tokens come, not which tokens (with `speculate_rule` "match"). None: as set
    when the model was loaded.
    """
    speculate_rule: SpeculateRule | None = None
    """Which drafted tokens are accepted. None: as set when the model was loaded."""

    @property
    def prompt_field(self) -> Literal["messages", "text", "token_ids"]:
        """Name of the field that holds the prompt."""
        if self.messages is not None:
            return "messages"
        return "token_ids" if self.text is None else "text"

    @property
    def one_call(self) -> bool:
        """At most one tool call is made; a forced tool is called exactly once."""
        return bool(self.forced_tool) or not self.parallel_tool_calls
